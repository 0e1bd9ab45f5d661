//! `assent build`: makes a module of a policy that is written as text.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context as _, bail};
use assent_core::Digest;
use assent_text::{Language, MAX_TEXT_BYTES, Text};
use assent_wasm::{Engine, EngineConfig, Limits};

use crate::{
    exit::Exit,
    out,
    progress::{self, Progress},
};

/// Makes a module of a policy that is written as text.
///
/// The language is that of the file: .rego, .cel.yaml, or a ValidatingAdmissionPolicy in a .yaml file, of which the
/// expressions are taken. The module runs wherever modules run, and needs nothing beside it. Equal texts give equal
/// modules.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Text: .rego, .cel.yaml, or a ValidatingAdmissionPolicy
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where the module is written [default: FILE with the extension .wasm]
    #[arg(
        short = 'O',
        long = "output-file",
        visible_short_alias = 'o',
        value_name = "FILE"
    )]
    output: Option<PathBuf>,

    /// Rule of a Rego text that decides [default: the only one of deny, violation, main, allow]
    #[arg(long, value_name = "RULE", default_value = "")]
    entrypoint: String,
}

const EXAMPLES: &str = "\
Examples:
  assent build policy.rego -o policy.wasm
  assent build policy.cel.yaml
  assent build validating-admission-policy.yaml

Exit codes: 0 = built, 2 = the text is not valid, or could not be read.";

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            file,
            output,
            entrypoint,
        } = self;
        let text = read(&file)?;
        let wasm = module(Text { entrypoint, ..text })?;
        let output = output.unwrap_or_else(|| default_output(&file));
        std::fs::write(&output, &wasm)
            .with_context(|| format!("failed to write {}", output.display()))?;
        out::print(format!(
            "{}: {}, {}\n",
            output.display(),
            progress::size(wasm.len() as u64),
            Digest::of(&wasm)
        ))?;
        Ok(Exit::Yes)
    }
}

/// Builds a text in this process: its author is the user.
pub(crate) fn module(text: Text) -> anyhow::Result<Vec<u8>> {
    let _progress = Progress::of(format!("building {} …", text.file));
    let engine = Engine::new(EngineConfig::small())?;
    let interpreter = interpreter(&engine, text.language)?;
    Ok(text.build(&engine, Some(interpreter), Limits::default())?)
}

/// The compiled interpreter: compiling takes seconds, and `assent test` and `assent up` build many texts.
fn interpreter(engine: &Engine, language: Language) -> anyhow::Result<&'static [u8]> {
    static REGO: OnceLock<Vec<u8>> = OnceLock::new();
    static CEL: OnceLock<Vec<u8>> = OnceLock::new();
    let slot = match language {
        Language::Rego => &REGO,
        Language::Cel => &CEL,
    };
    if let Some(compiled) = slot.get() {
        return Ok(compiled);
    }
    let compiled = engine.precompile_interpreter(language.interpreter())?;
    Ok(slot.get_or_init(|| compiled))
}

/// Reads a text, whose language its name tells, or its kind.
fn read(path: &Path) -> anyhow::Result<Text> {
    let name = path.to_string_lossy();
    let content = read_text(path)?;
    if let Some(text) = Text::from_file(&name, &*content) {
        return Ok(text);
    }
    if is_policy_of_the_api_server(&content) {
        return Ok(Text {
            language: Language::Cel,
            file: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            text: content,
            entrypoint: String::new(),
        });
    }
    bail!(
        "{name} is not a policy written as text: its name must end with .rego or .cel.yaml, or it must be a \
         ValidatingAdmissionPolicy"
    );
}

fn is_policy_of_the_api_server(content: &str) -> bool {
    assent_yaml::load_first(content)
        .is_ok_and(|document| assent_text::is_validating_admission_policy(&document))
}

/// Reads a file, but not more than the largest text.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    use std::io::Read as _;
    let failed = || format!("failed to read {}", path.display());
    let file = std::fs::File::open(path).with_context(failed)?;
    let mut content = String::new();
    let mut limited = file.take(MAX_TEXT_BYTES as u64 + 1);
    limited.read_to_string(&mut content).with_context(failed)?;
    Ok(content)
}

fn default_output(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or("policy");
    file.with_file_name(format!("{stem}.wasm"))
}
