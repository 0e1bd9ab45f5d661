//! The calls into the Wasm sandbox that prepare a revision.

use std::time::Duration;

use assent_core::Policy;
use assent_wasm::{Engine, Limits, Module, PolicySpec, PolicyType, PrepareError};

use super::fetch::Code;
use crate::failure::{Failure, Stage};

/// Compiles or loads bytes whose digest was verified.
pub(crate) fn compile(engine: &Engine, code: &Code) -> Result<Module, Failure> {
    let module = match code {
        Code::Portable(wasm) => engine.compile(wasm),
        Code::Artefact(bytes, digest) => engine.load(bytes, digest.as_bytes()),
    };
    module.map_err(|error| {
        let stage = match error {
            assent_wasm::Error::Unfit(_) => Stage::Link,
            _ => Stage::Compile,
        };
        Failure::permanent(stage, error.to_string())
    })
}

/// Links the policy; its settings are not validated yet.
pub(crate) fn link(
    engine: &Engine,
    module: &Module,
    policy: &Policy,
) -> Result<assent_wasm::Policy, Failure> {
    let spec = spec(module, policy)?;
    assent_wasm::Policy::prepare(engine, module, spec).map_err(failure)
}

/// Validates the settings and runs the self-test.
pub(crate) fn test(sandbox: &assent_wasm::Policy) -> Result<(), Failure> {
    sandbox.validate_settings().map_err(failure)?;
    sandbox.self_test().map_err(failure)
}

fn spec(module: &Module, policy: &Policy) -> Result<PolicySpec, Failure> {
    let content = &policy.content;
    let abi = content.abi.parse();
    let abi = abi.map_err(|error: assent_wasm::UnknownAbi| {
        Failure::permanent(Stage::Link, error.to_string())
    })?;
    let metadata = module.inspection().metadata.as_ref();
    Ok(PolicySpec {
        settings_json: content.settings_json.to_vec().into(),
        mutating: content.mutating,
        limits: Limits {
            timeout: Duration::from_millis(content.limits.timeout_ms.into()),
            memory_bytes: content.limits.memory_bytes,
        },
        entrypoint: content.entrypoint.clone(),
        host_capabilities: content.host_capabilities.clone(),
        message: content.message.clone(),
        check: content.requests.is_some(),
        raw: metadata.is_some_and(|metadata| metadata.policy_type == PolicyType::Raw),
        name: policy.policy.to_string(),
        confidential: content.is_confidential(),
        ..PolicySpec::new(abi)
    })
}

fn failure(error: PrepareError) -> Failure {
    let stage = match error.stage() {
        assent_wasm::Stage::Link => Stage::Link,
        assent_wasm::Stage::Instantiate => Stage::Instantiate,
        assent_wasm::Stage::Settings => Stage::Settings,
        assent_wasm::Stage::SelfTest => Stage::SelfTest,
    };
    let message = error.to_string();
    if error.is_transient() {
        Failure::transient(stage, message)
    } else {
        Failure::permanent(stage, message)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check_stage(wasm: &[u8], stage: Stage) {
        let engine = Engine::new(assent_wasm::EngineConfig::small()).unwrap();
        let code = Code::Portable(wasm.to_vec().into());
        let failure = compile(&engine, &code).err().unwrap();
        assert_eq!((failure.stage, failure.retryable), (stage, false));
    }

    #[test]
    fn a_module_that_fits_no_abi_does_not_link() {
        check_stage(b"\0asm\x01\0\0\0", Stage::Link);
        check_stage(b"not wasm", Stage::Compile);
    }
}
