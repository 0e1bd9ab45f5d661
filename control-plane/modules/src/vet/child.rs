//! The child process.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
    time::Duration,
};

use assent_core::digest::Digest;
use assent_wasm::{
    Abi, Engine, EngineConfig, Inspection, Limits, Module, Policy, PolicySpec, PolicyType,
    capability,
};
use bytes::Bytes;

use super::{
    cage,
    frame::{self, Order, Tag, Task},
    limits,
    report::{Facts, Refused, Stage, VetRequest},
    system::System,
};

/// The exit code of a child that failed for a reason other than the module. Neither a panic
/// (101) nor a shell that does not find a program (127) uses it.
pub(super) const UNABLE: u8 = 70;

/// What reading a text may use. A text of the largest size takes a tenth of a second; the rest is for busy machines.
const BUILD_LIMITS: Limits = Limits {
    timeout: Duration::from_secs(10),
    memory_bytes: 128 << 20,
};

/// Vets one module: the whole of a process that a [`super::Vetter`] starts.
///
/// Reads the order from standard input and reports on standard output; call it before
/// anything else, and print nothing.
pub fn child_main() -> ExitCode {
    match run(&mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent reports it.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(UNABLE)
        }
    }
}

/// Prints what [`super::Vetter::probe`] reads: the confinement that a vetting child has on
/// this system, and its engine.
pub fn report_main() -> ExitCode {
    match report(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(UNABLE)
        }
    }
}

fn report(output: &mut impl Write) -> io::Result<()> {
    limits::yield_to_parent()?;
    let confinement = cage::confine()?;
    let engine = Engine::new(EngineConfig::small()).map_err(io::Error::other)?;
    let system = System {
        confinement,
        engine: engine.fingerprint().to_owned(),
    };
    writeln!(output, "{}", serde_json::to_string(&system)?)
}

fn run(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    limits::yield_to_parent()?;
    let Order { limits, task } = frame::read_order(input)?;
    limits.apply()?;
    cage::confine()?;
    let mut code = Vec::new();
    let most = task.max_bytes() as u64 + 1;
    input.take(most).read_to_end(&mut code)?;
    let engine = Engine::new(EngineConfig::small()).map_err(io::Error::other)?;
    let result = match task {
        Task::Vet(request) => {
            let module = compile(&engine, &code, &request, output)?;
            vet(&engine, module, &request)
        }
        Task::VetCompiled(request) => {
            let module = load(&engine, &code, output)?;
            vet(&engine, Ok(module), &request)
        }
        Task::CompileInterpreter(language) => {
            let compiled = engine.precompile_interpreter(language.interpreter());
            let compiled = compiled.map_err(io::Error::other)?;
            frame::write(output, Tag::Artefact, &compiled)?;
            Ok(())
        }
        Task::Build(text) => match text.build(&engine, Some(&code), BUILD_LIMITS) {
            Ok(wasm) => {
                frame::write(output, Tag::Module, &wasm)?;
                Ok(())
            }
            Err(error @ assent_text::Error::Text(_)) => refuse(Stage::Text, error),
            Err(error) => return Err(io::Error::other(error)),
        },
    };
    frame::write(output, Tag::Result, &serde_json::to_vec(&result)?)?;
    output.flush()
}

fn vet(
    engine: &Engine,
    module: Result<Module, Refused>,
    request: &VetRequest,
) -> Result<(), Refused> {
    let module = module?;
    if request.try_out {
        try_out(engine, &module, request)?;
    }
    Ok(())
}

/// Everything that runs no code of the guest. The results are written at once.
fn compile(
    engine: &Engine,
    wasm: &[u8],
    request: &VetRequest,
    output: &mut impl Write,
) -> io::Result<Result<Module, Refused>> {
    let (inspection, abi) = match inspect(wasm, request) {
        Ok(found) => found,
        Err(refused) => return Ok(Err(refused)),
    };
    let artefact = match engine.precompile(wasm) {
        Ok(artefact) => artefact,
        Err(error) => return Ok(refuse(Stage::Compile, error)),
    };
    write_facts(engine, &inspection, abi, output)?;
    if request.artefact {
        frame::write(output, Tag::Artefact, &artefact)?;
    }
    output.flush()?;
    let digest = Digest::of(&artefact);
    Ok(engine
        .load(&artefact, digest.as_bytes())
        .or_else(|error| refuse(Stage::Compile, error)))
}

/// The same for a module that was compiled before. An error says nothing about the module.
fn load(engine: &Engine, artefact: &[u8], output: &mut impl Write) -> io::Result<Module> {
    let digest = Digest::of(artefact);
    let loaded = engine.load(artefact, digest.as_bytes());
    let module = loaded.map_err(io::Error::other)?;
    let inspection = module.inspection();
    let abi = inspection
        .abi
        .ok_or_else(|| io::Error::other("the artefact has no ABI"))?;
    write_facts(engine, inspection, abi, output)?;
    output.flush()?;
    Ok(module)
}

fn write_facts(
    engine: &Engine,
    inspection: &Inspection,
    abi: Abi,
    output: &mut impl Write,
) -> io::Result<()> {
    let facts = Facts {
        abi: abi.to_string(),
        metadata: inspection.metadata.clone(),
        required_context: inspection.required_context(),
        size: inspection.size,
        engine: engine.fingerprint().to_owned(),
    };
    frame::write(output, Tag::Facts, &serde_json::to_vec(&facts)?)
}

fn inspect(wasm: &[u8], request: &VetRequest) -> Result<(Inspection, Abi), Refused> {
    let inspection = assent_wasm::inspect(wasm).or_else(|error| refuse(Stage::Inspect, error))?;
    if let Some(problem) = &inspection.problem {
        return refuse(Stage::Inspect, problem);
    }
    let Some(abi) = inspection.abi else {
        return refuse(Stage::Inspect, "the module fits no known ABI");
    };
    match &request.abi {
        Some(wanted) if wanted != abi.as_str() => refuse(
            Stage::Inspect,
            format!("the module has the ABI {abi}, not {wanted}"),
        ),
        _ => Ok((inspection, abi)),
    }
}

/// Everything that runs code of the guest.
fn try_out(engine: &Engine, module: &Module, request: &VetRequest) -> Result<(), Refused> {
    let spec = spec(module.inspection(), request)?;
    let failed = |error: assent_wasm::PrepareError| Refused {
        stage: error.stage().into(),
        message: error.to_string(),
    };
    let policy = Policy::prepare(engine, module, spec).map_err(failed)?;
    policy.validate_settings().map_err(failed)?;
    policy.self_test().map_err(failed)
}

fn spec(inspection: &Inspection, request: &VetRequest) -> Result<PolicySpec, Refused> {
    let Some(abi) = inspection.abi else {
        return refuse(Stage::Inspect, "the module fits no known ABI");
    };
    let granted = &request.granted_capabilities;
    let metadata = inspection.metadata.as_ref();
    Ok(PolicySpec {
        settings_json: Bytes::from(request.settings_json.clone()),
        mutating: request.mutating,
        limits: Limits::from(request.limits),
        entrypoint: request.entrypoint.clone(),
        host_capabilities: capability::effective(granted, inspection.host_capabilities()),
        check: request.check,
        raw: metadata.is_some_and(|metadata| metadata.policy_type == PolicyType::Raw),
        confidential: request.confidential,
        ..PolicySpec::new(abi)
    })
}

fn refuse<T>(stage: Stage, message: impl ToString) -> Result<T, Refused> {
    Err(Refused {
        stage,
        message: message.to_string(),
    })
}
