//! The fuzz targets over their corpus: nothing panics, and what is valid is accepted.

use std::{fs, path::PathBuf};

use assent_wasm::fuzz;

#[track_caller]
fn check(target: &str, body: fn(&[u8]) -> bool) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
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
