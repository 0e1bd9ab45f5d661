//! A guest that calls the host.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = assent_wasm::fuzz::guest(bytes);
});
