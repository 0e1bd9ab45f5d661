;; A policy that asks for 119 MiB of memory whenever it is called, and allows everything. Within the limit of 128 MiB that
;; policies have, but more than a replica with little memory can give.
(module
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (import "wapc" "__guest_response" (func $response (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"accepted\":true}")
  (data (i32.const 32) "{\"valid\":true}")
  ;; 1,900 pages more, each written to: memory that is only asked for costs nothing.
  (func $gorge
    (drop (memory.grow (i32.const 1900)))
    (memory.fill (i32.const 65536) (i32.const 1) (i32.const 124518400)))
  (func (export "__guest_call") (param $operation i32) (param $payload i32) (result i32)
    (call $gorge)
    ;; "validate" has 8 letters, "validate_settings" has 17.
    (if (i32.eq (local.get $operation) (i32.const 8))
      (then (call $response (i32.const 0) (i32.const 17)))
      (else (call $response (i32.const 32) (i32.const 14))))
    (i32.const 1)))
