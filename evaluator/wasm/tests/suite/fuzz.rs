//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.

use assent_wasm::fuzz;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;

use corpus::check;

#[test]
fn corpus_of_modules() {
    check("module", fuzz::module);
}

#[test]
fn corpus_of_metadata() {
    check("metadata", fuzz::metadata);
}

#[test]
fn corpus_of_requests() {
    check("request", fuzz::request);
}

#[test]
fn corpus_of_answers() {
    check("answers", fuzz::answers);
}

#[test]
fn corpus_of_guests() {
    check("guest", fuzz::guest);
}
