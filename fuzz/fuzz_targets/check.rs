//! A call of Envoy.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = assent_evaluator::fuzz::check(bytes);
});
