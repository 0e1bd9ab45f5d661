//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.
#![allow(clippy::unwrap_used)]

use std::{fs, path::PathBuf};

use assent_evaluator::fuzz;

#[track_caller]
fn check(target: &str, body: fn(&[u8]) -> bool) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let good = body(&fs::read(entry.path()).unwrap());
        assert!(good || !name.starts_with("valid"), "{target}/{name}");
        *(if good { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(
        accepted >= 2 && refused >= 8,
        "{target}: {accepted} accepted, {refused} refused: the corpus is too thin"
    );
}

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
