//! The answers of guests.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // A panic of a library of Rego's builtins is caught and ends the evaluation. Any other one
    // still ends this process.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| {
        let _ = assent_wasm::fuzz::answers(bytes);
    }
);
