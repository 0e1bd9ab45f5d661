//! The body of a review.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = assent_evaluator::fuzz::review(bytes);
});
