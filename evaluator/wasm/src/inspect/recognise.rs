//! Which ABI a module speaks.

use std::collections::BTreeSet;

use super::{Export, Import};
use crate::{abi::Abi, headroom, metadata::Metadata};

/// Import modules that waPC hosts provide.
const WAPC: &str = "wapc";
const WASI: &str = "wasi_snapshot_preview1";

/// The ABI, and why the module would not load with it.
pub(super) fn abi(
    metadata: Option<&Metadata>,
    imports: &[Import],
    exports: &[Export],
) -> (Option<Abi>, Option<String>) {
    let declared = metadata.and_then(|metadata| metadata.abi().ok());
    if let Some(abi) = declared {
        return (Some(abi), misfit(abi, imports, exports));
    }
    match guess(imports, exports) {
        Some(abi) => (Some(abi), misfit(abi, imports, exports)),
        None => (None, Some(not_recognised(imports))),
    }
}

/// Gatekeeper's modules look like OPA's: they are known by their metadata only.
fn guess(imports: &[Import], exports: &[Export]) -> Option<Abi> {
    let any_import = |test: fn(&Import) -> bool| imports.iter().any(test);
    if has(exports, "__guest_call") && any_import(|import| import.module == WAPC) {
        return Some(Abi::Wapc);
    }
    let opa_entry = ["opa_eval", "opa_eval_ctx_new", "eval"]
        .iter()
        .any(|name| has(exports, name));
    if opa_entry && any_import(|import| import.module == "env" && import.name.starts_with("opa_")) {
        return Some(Abi::Opa);
    }
    let only_wasi = imports
        .iter()
        .all(|import| import.module == WASI || is_wasi_host_call(import));
    (has(exports, "_start") && only_wasi).then_some(Abi::Wasi)
}

/// What keeps the module from being run with this ABI.
fn misfit(abi: Abi, imports: &[Import], exports: &[Export]) -> Option<String> {
    if has(exports, headroom::CAP) {
        return Some(format!(
            "the module exports {:?}, a name that is the host's own",
            headroom::CAP
        ));
    }
    let missing: Vec<_> = required(abi)
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
        .filter(|import| !is_provided(abi, import))
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

fn required(abi: Abi) -> &'static [&'static str] {
    match abi {
        Abi::Wapc => &["memory", "__guest_call"],
        Abi::Opa | Abi::Gatekeeper => &["opa_json_parse", "opa_malloc"],
        Abi::Wasi => &["memory", "_start"],
    }
}

fn is_provided(abi: Abi, import: &Import) -> bool {
    match abi {
        Abi::Wapc => import.kind == "func" && (import.module == WAPC || import.module == WASI),
        Abi::Opa | Abi::Gatekeeper => {
            import.module == "env" && (import.name.starts_with("opa_") || import.kind == "memory")
        }
        Abi::Wasi => import.kind == "func" && (import.module == WASI || is_wasi_host_call(import)),
    }
}

fn is_wasi_host_call(import: &Import) -> bool {
    import.name == "call" && (import.module == "host" || import.module == "kubewarden:javy/host")
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

fn has(exports: &[Export], name: &str) -> bool {
    exports.iter().any(|export| export.name == name)
}
