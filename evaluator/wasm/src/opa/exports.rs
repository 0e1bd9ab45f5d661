//! What a Rego module offers, by ABI version.

use wasmtime::{ExternType, Module, ModuleExport, TypedFunc};

use crate::{
    exports::{func, optional_func},
    policy::{EvalError, PrepareError},
    sandbox::Sandbox,
};

/// Functions of the module, found once.
pub(super) struct Exports {
    pub(super) malloc: ModuleExport,
    pub(super) json_parse: ModuleExport,
    pub(super) json_dump: ModuleExport,
    pub(super) builtins: ModuleExport,
    pub(super) entrypoints: ModuleExport,
    value_parse: Option<ModuleExport>,
    value_dump: Option<ModuleExport>,
    pub(super) call: Call,
}

/// How an evaluation is started.
pub(super) enum Call {
    /// Minor version 2 and newer: one call does it all.
    OneShot {
        eval: ModuleExport,
        heap_ptr_get: ModuleExport,
    },
    /// Before: a context is filled in and evaluated.
    Context {
        new: ModuleExport,
        set_input: ModuleExport,
        set_data: ModuleExport,
        set_entrypoint: Option<ModuleExport>,
        eval: ModuleExport,
        get_result: ModuleExport,
    },
}

/// What host functions call back, in one sandbox.
#[derive(Clone)]
pub(super) struct Functions {
    pub(super) malloc: TypedFunc<i32, i32>,
    pub(super) parse: TypedFunc<(i32, i32), i32>,
    pub(super) dump: TypedFunc<i32, i32>,
}

// === impl Exports ===

impl Exports {
    pub(super) fn find(module: &Module) -> Result<Self, PrepareError> {
        require_memory(module)?;
        let call = match optional_func(module, "opa_eval", 7, 1)? {
            Some(eval) => Call::OneShot {
                eval,
                heap_ptr_get: func(module, "opa_heap_ptr_get", 0, 1)?,
            },
            None => Call::Context {
                new: func(module, "opa_eval_ctx_new", 0, 1)?,
                set_input: func(module, "opa_eval_ctx_set_input", 2, 0)?,
                set_data: func(module, "opa_eval_ctx_set_data", 2, 0)?,
                set_entrypoint: optional_func(module, "opa_eval_ctx_set_entrypoint", 2, 0)?,
                eval: func(module, "eval", 1, 1)?,
                get_result: func(module, "opa_eval_ctx_get_result", 1, 1)?,
            },
        };
        Ok(Self {
            malloc: func(module, "opa_malloc", 1, 1)?,
            json_parse: func(module, "opa_json_parse", 2, 1)?,
            json_dump: func(module, "opa_json_dump", 1, 1)?,
            builtins: func(module, "builtins", 0, 1)?,
            entrypoints: func(module, "entrypoints", 0, 1)?,
            value_parse: optional_func(module, "opa_value_parse", 2, 1)?,
            value_dump: optional_func(module, "opa_value_dump", 1, 1)?,
            call,
        })
    }

    /// Without the functions that support sets, sets become arrays, as in ABI 1.0.
    pub(super) fn functions(&self, sandbox: &mut Sandbox<'_>) -> Result<Functions, EvalError> {
        Ok(Functions {
            malloc: sandbox.func(&self.malloc)?,
            parse: sandbox.func(self.value_parse.as_ref().unwrap_or(&self.json_parse))?,
            dump: sandbox.func(self.value_dump.as_ref().unwrap_or(&self.json_dump))?,
        })
    }
}

fn require_memory(module: &Module) -> Result<(), PrepareError> {
    if matches!(module.get_export("memory"), Some(ExternType::Memory(_))) {
        return Ok(());
    }
    Err(PrepareError::link("the module does not export its memory"))
}
