//! `assent annotate`: writes the metadata of a module.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use crate::{exit::Exit, input, module::ModuleArgs, out};

/// Writes the metadata of a policy into its module.
///
/// The metadata (the custom section io.kubewarden.metadata) says how the module is called, whether it changes objects, which
/// host calls it makes and which rules its author suggests. Metadata that is already there is replaced.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Module: a .wasm file, or whatever else `assent run` takes
    #[arg(value_name = "MODULE")]
    module: String,

    /// Metadata as YAML or JSON
    #[arg(short, long, value_name = "FILE")]
    metadata: PathBuf,

    /// File to write; may be the module itself
    #[arg(short = 'O', long, value_name = "FILE")]
    output_file: PathBuf,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent annotate target/wasm32-wasip1/release/policy.wasm -m metadata.yaml -O policy.wasm
  assent inspect policy.wasm

Exit codes: 0 = written, 2 = not written.";

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            module,
            metadata,
            output_file,
            modules,
        } = self;
        let documents = input::read_documents(&metadata)?;
        let [document] = documents.as_slice() else {
            bail!("{} must be one document", metadata.display());
        };
        // Compact and in the order of the file: the same input gives the same bytes.
        let json = serde_json::to_vec(&document.value()).context("failed to write the metadata")?;
        let loaded = crate::client::block_on(modules.load(&module))?;
        let annotated = assent_wasm::annotate(&loaded.bytes, &json)
            .with_context(|| format!("failed to annotate {}", loaded.origin))?;
        out::write_file(&output_file, &annotated)?;
        Ok(Exit::Yes)
    }
}
