//! Finds what a module must export, once, when a policy is prepared.

use wasmtime::{ExternType, Module, ModuleExport, ValType};

use crate::policy::PrepareError;

/// A function that takes `params` and returns `results` 32-bit integers.
pub(crate) fn func(
    module: &Module,
    name: &str,
    params: usize,
    results: usize,
) -> Result<ModuleExport, PrepareError> {
    let missing = || PrepareError::link(format!("the module does not export the function {name}"));
    let Some(ExternType::Func(ty)) = module.get_export(name) else {
        return Err(missing());
    };
    let all_i32 = ty
        .params()
        .chain(ty.results())
        .all(|ty| matches!(ty, ValType::I32));
    if !all_i32 || ty.params().len() != params || ty.results().len() != results {
        return Err(PrepareError::link(format!(
            "the exported function {name} has the wrong signature: expected {params} i32 parameters and {results} i32 results, found {ty}"
        )));
    }
    module.get_export_index(name).ok_or_else(missing)
}

/// As [`func`], for a function that need not exist.
pub(crate) fn optional_func(
    module: &Module,
    name: &str,
    params: usize,
    results: usize,
) -> Result<Option<ModuleExport>, PrepareError> {
    module
        .get_export(name)
        .map(|_| func(module, name, params, results))
        .transpose()
}
