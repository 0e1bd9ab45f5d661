//! The reader of the corpus, shared by the ordinary tests that run the targets over it.

use std::{fs, path::Path};

/// Runs a target over its files: nothing panics, and what is valid is accepted.
#[track_caller]
pub(crate) fn check(target: &str, body: fn(&[u8]) -> bool) {
    let (mut accepted, mut refused) = (0, 0);
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = above.find_map(|root| {
        let folder = root.join("fuzz/corpus").join(target);
        folder.is_dir().then_some(folder)
    });
    let folder = folder.expect("the corpus must be in the repository");
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
