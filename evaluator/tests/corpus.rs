//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.
#![allow(clippy::unwrap_used)]

use assent_evaluator::fuzz;

#[path = "../../fuzz/corpus.rs"]
mod corpus;

use corpus::check;

#[test]
fn reviews_of_the_corpus_are_handled() {
    check("review", fuzz::review);
}

#[test]
fn envoy_calls_of_the_corpus_are_handled() {
    check("check", fuzz::check);
}

#[test]
fn responses_of_the_corpus_are_handled() {
    check("set", fuzz::set);
}

#[test]
fn sets_of_the_corpus_are_handled() {
    check("kept_set", fuzz::kept_set);
}
