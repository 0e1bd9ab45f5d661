//! The file of the last good set.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = assent_evaluator::fuzz::kept_set(bytes);
});
