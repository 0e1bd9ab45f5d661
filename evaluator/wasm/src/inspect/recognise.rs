//! Which ABI a module has, and whether the host can run it.

use std::collections::BTreeSet;

use super::{Export, Import, Sections};
use crate::{abi::Abi, headroom, metadata::Metadata};

/// The ABI, and why the module would not load with it.
pub(super) fn abi(
    metadata: Option<&Metadata>,
    sections: &Sections<'_>,
) -> (Option<Abi>, Option<String>) {
    let (imports, exports) = (&sections.imports, &sections.exports);
    let declared = metadata.and_then(|metadata| metadata.abi().ok());
    if let Some(abi) = declared {
        return (Some(abi), problem(abi, sections));
    }
    let recognised = Abi::ALL
        .into_iter()
        .find(|abi| abi.adapter().recognises(imports, exports));
    match recognised {
        Some(abi) => (Some(abi), problem(abi, sections)),
        None => (None, Some(not_recognised(imports))),
    }
}

/// Why the module can't be run with this ABI.
fn problem(abi: Abi, sections: &Sections<'_>) -> Option<String> {
    let (imports, exports) = (&sections.imports, &sections.exports);
    if let Some(problem) = abi.adapter().version_problem(&sections.constants) {
        return Some(problem);
    }
    if has(exports, headroom::CAP) {
        return Some(format!(
            "the module exports {:?}, a name that is the host's own",
            headroom::CAP
        ));
    }
    let missing: Vec<_> = abi
        .adapter()
        .required_exports()
        .iter()
        .copied()
        .filter(|name| !has(exports, name))
        .collect();
    if !missing.is_empty() {
        return Some(format!(
            "a module of ABI {abi} must export {}",
            missing.join(", ")
        ));
    }
    let unknown: BTreeSet<_> = imports
        .iter()
        .filter(|import| !abi.adapter().provides(import))
        .map(|import| format!("{}.{}", import.module, import.name))
        .collect();
    if unknown.is_empty() {
        return None;
    }
    Some(format!(
        "imports that are not understood for ABI {abi}: {}",
        list(unknown)
    ))
}

fn not_recognised(imports: &[Import]) -> String {
    if imports.is_empty() {
        return "the module fits no known ABI: it imports nothing, and exports neither __guest_call nor _start nor an OPA entry point".to_owned();
    }
    let names: BTreeSet<_> = imports
        .iter()
        .map(|import| format!("{}.{}", import.module, import.name))
        .collect();
    format!("the module fits no known ABI; its imports: {}", list(names))
}

/// Enough names to understand, few enough for a status message.
fn list(names: BTreeSet<String>) -> String {
    const SHOWN: usize = 12;
    let total = names.len();
    let mut text = names.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
    if total > SHOWN {
        text.push_str(&format!(" and {} more", total - SHOWN));
    }
    text
}

/// Whether one of the exports has this name.
pub(crate) fn has(exports: &[Export], name: &str) -> bool {
    exports.iter().any(|export| export.name == name)
}
