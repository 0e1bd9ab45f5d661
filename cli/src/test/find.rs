//! Finds files with cases, and the policies that they are about.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::input;

/// What a policy is called, in this order.
const POLICIES: [&str; 4] = [
    "manifest.yaml",
    "manifest.yml",
    "policy.yaml",
    "policy.wasm",
];

/// The directory that holds cases.
const TESTS: &str = "tests";

/// Files that may hold cases, each once, in order of their names.
pub(super) fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_file() {
            found.push(path.clone());
        } else if path.is_dir() {
            let below_tests = is_in_tests(&std::path::absolute(path).unwrap_or(path.clone()));
            let files = input::files_in(path, true)?.into_iter();
            found.extend(files.filter(|file| below_tests || is_case_file(path, file)));
        } else {
            bail!("there is no file or directory {}", path.display());
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Whether a file that was found in `root` is one of cases.
fn is_case_file(root: &Path, file: &Path) -> bool {
    let below = file.strip_prefix(root).unwrap_or(file);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    stem.ends_with("_test") || below.parent().is_some_and(is_in_tests)
}

fn is_in_tests(dir: &Path) -> bool {
    dir.components().any(|part| part.as_os_str() == TESTS)
}

/// The policy that is nearest to the directory of a case.
pub(super) fn nearest_policy(dir: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(dir).ok()?;
    let candidates = absolute
        .ancestors()
        .flat_map(|dir| POLICIES.map(|name| dir.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_recognised_by_directory_or_name() {
        let check = |file: &str, expect| {
            let file = Path::new(file);
            assert_eq!(
                is_case_file(Path::new("p"), file),
                expect,
                "{}",
                file.display()
            );
        };
        check("p/a/tests/pod.json", true);
        check("p/tests/settings/bad.yaml", true);
        check("p/a/pod_test.yaml", true);
        check("p/a/manifest.yaml", false);
        check("p/a/tests.yaml", false);
    }
}
