;; A policy as small as they get: it looks at every byte of the payload for a 0, which JSON does not have, and accepts.
(module
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 8)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 64) "{\"accepted\":false,\"message\":\"a zero byte\"}")
  (func (export "__guest_call") (param $operation i32) (param $length i32) (result i32)
    (local $at i32)
    (if (i32.eq (local.get $operation) (i32.const 17)) ;; "validate_settings"
      (then
        (call $respond (i32.const 0) (i32.const 14))
        (return (i32.const 1))))
    (call $request (i32.const 1024) (i32.const 2048))
    (block $end
      (loop $next
        (br_if $end (i32.ge_u (local.get $at) (local.get $length)))
        (if (i32.eqz (i32.load8_u offset=2048 (local.get $at)))
          (then
            (call $respond (i32.const 64) (i32.const 42))
            (return (i32.const 1))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
