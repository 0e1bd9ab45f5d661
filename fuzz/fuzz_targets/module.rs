//! A module.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = assent_wasm::fuzz::module(bytes);
});
