//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.

use assent_wasm::fuzz;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;

use corpus::check;

#[test]
fn modules_of_the_corpus_are_handled() {
    check("module", fuzz::module);
}

#[test]
fn metadata_of_the_corpus_are_handled() {
    check("metadata", fuzz::metadata);
}

#[test]
fn requests_of_the_corpus_are_handled() {
    check("request", fuzz::request);
}

#[test]
fn answers_of_the_corpus_are_handled() {
    check("answers", fuzz::answers);
}

#[test]
fn guests_of_the_corpus_are_handled() {
    check("guest", fuzz::guest);
}
