//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.
#![allow(clippy::unwrap_used)]

use assent_evaluator::fuzz;

#[path = "../../fuzz/corpus.rs"]
mod corpus;

use corpus::check;

#[test]
fn reviews() {
    check("review", fuzz::review);
}

#[test]
fn responses_of_the_control_plane() {
    check("set", fuzz::set);
}

#[test]
fn the_last_good_set() {
    check("kept_set", fuzz::kept_set);
}
