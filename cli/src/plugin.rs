//! The same program as a plugin of kubectl: `kubectl assent status` runs `kubectl-assent status`.

use std::{ffi::OsStr, path::Path, sync::OnceLock};

/// Whether this process was started under the plugin's name.
pub(crate) fn is_plugin() -> bool {
    static PLUGIN: OnceLock<bool> = OnceLock::new();
    *PLUGIN.get_or_init(|| is_plugin_name(std::env::args_os().next().as_deref()))
}

/// The name in help and usage messages.
pub(crate) fn name() -> &'static str {
    match is_plugin() {
        true => "kubectl assent",
        false => "assent",
    }
}

/// kubectl finds plugins by their file names.
fn is_plugin_name(program: Option<&OsStr>) -> bool {
    let stem = program.and_then(|program| Path::new(program).file_stem());
    stem.is_some_and(|stem| stem == "kubectl-assent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_makes_a_plugin() {
        let is = |name: &str| is_plugin_name(Some(OsStr::new(name)));
        assert!(is("kubectl-assent"));
        assert!(is("/usr/local/bin/kubectl-assent"));
        assert!(!is("/opt/kubectl-assent/assent"));
        assert!(!is("assent"));
        assert!(!is_plugin_name(None));
    }
}
