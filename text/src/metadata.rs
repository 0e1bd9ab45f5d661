//! What a module says about the text that it was made of.

use assent_wasm::Metadata;
use sha2::{Digest as _, Sha256};
use wasm_encoder::{CustomSection, Encode as _, Section as _};

use crate::{Language, Text, cel};

/// Where a module came from, as its metadata tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The language.
    pub language: String,
    /// The interpreter's library and its version.
    pub interpreter: String,
    /// `sha256:<hex>` of the text.
    pub digest: String,
    /// The rule that decides, for Rego.
    pub entrypoint: Option<String>,
    /// The text.
    pub text: String,
}

const SECTION: &str = "io.kubewarden.metadata";

/// A line by which a text in Rego declares that it changes objects.
const MUTATING: &str = "# assent.mutating";

const LANGUAGE: &str = "dev.assent.text.language";
const INTERPRETER: &str = "dev.assent.text.interpreter";
const DIGEST: &str = "dev.assent.text.digest";
const ENTRYPOINT: &str = "dev.assent.text.entrypoint";
const TEXT: &str = "dev.assent.text";

/// The text that a module was made of; `None` if it was not made of one.
pub fn origin(metadata: &Metadata) -> Option<Origin> {
    let get = |key| metadata.annotations.get(key).cloned();
    Some(Origin {
        language: get(LANGUAGE)?,
        interpreter: get(INTERPRETER)?,
        digest: get(DIGEST)?,
        entrypoint: get(ENTRYPOINT),
        text: get(TEXT)?,
    })
}

/// Adds the metadata to a module.
pub(crate) fn add(mut wasm: Vec<u8>, text: &Text, entrypoint: &str) -> Vec<u8> {
    let json = serde_json::to_vec(&describe(text, entrypoint));
    let section = CustomSection {
        name: SECTION.into(),
        data: json.expect("metadata must be JSON").into(),
    };
    wasm.push(section.id());
    section.encode(&mut wasm);
    wasm
}

fn describe(text: &Text, entrypoint: &str) -> Metadata {
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(&text.text)));
    let mut metadata = Metadata {
        protocol_version: Some("v1".to_owned()),
        execution_mode: Some("kubewarden-wapc".to_owned()),
        mutating: match text.language {
            Language::Rego => text.text.lines().any(|line| line.trim() == MUTATING),
            Language::Cel => cel::is_mutating(&text.text),
        },
        background_audit: true,
        // An interpreter makes no host calls.
        host_capabilities: Some(Vec::new()),
        ..Metadata::default()
    };
    let mut annotate = |key: &str, value: &str| {
        metadata
            .annotations
            .insert(key.to_owned(), value.to_owned());
    };
    annotate(LANGUAGE, text.language.as_str());
    annotate(INTERPRETER, text.language.interpreter_version());
    annotate(DIGEST, &digest);
    annotate(TEXT, &text.text);
    annotate("io.kubewarden.policy.title", &text.file);
    if !entrypoint.is_empty() {
        annotate(ENTRYPOINT, entrypoint);
    }
    metadata
}
