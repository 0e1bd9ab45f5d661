//! What a module is, read from its bytes without compiling it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

use crate::{
    abi::Abi,
    limits::MAX_MODULE_BYTES,
    metadata::{self, Metadata},
};

mod recognise;

/// What can be said of a module from its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// How it is called, if that could be told.
    #[serde(with = "abi_name")]
    pub abi: Option<Abi>,
    /// What its author says about it.
    pub metadata: Option<Metadata>,
    /// What it needs of its host.
    pub imports: Vec<Import>,
    /// What it offers.
    pub exports: Vec<Export>,
    /// `sha256:<hex>` of the module.
    pub digest: String,
    /// Bytes of the module.
    pub size: u64,
    /// Why it would not load; `None` for a module that looks sound.
    pub problem: Option<String>,
}

/// Something that the module needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// First part of the name.
    pub module: String,
    /// Second part of the name.
    pub name: String,
    /// `func`, `memory`, `table`, `global` or `tag`.
    pub kind: String,
}

/// Something that the module offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// `func`, `memory`, `table`, `global` or `tag`.
    pub kind: String,
}

/// Why bytes are no module at all.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Too large to be looked at.
    #[error("the module has {size} bytes, more than the {MAX_MODULE_BYTES} allowed")]
    TooLarge {
        /// Bytes of the module.
        size: usize,
    },
    /// A component instead of a core module.
    #[error("this is a WebAssembly component, not a core module: policies are core modules")]
    Component,
    /// Not WebAssembly, or cut off.
    #[error("failed to parse the WebAssembly module: {0}")]
    Malformed(#[from] wasmparser::BinaryReaderError),
}

/// The raw findings of one pass over the sections.
#[derive(Default)]
struct Sections<'a> {
    imports: Vec<Import>,
    exports: Vec<Export>,
    metadata: Option<&'a [u8]>,
}

/// Looks at a module: its ABI, metadata, imports and exports.
///
/// Fails only for bytes that are no module; one that would not load is described with its `problem`.
pub fn inspect(wasm: &[u8]) -> Result<Inspection, InspectError> {
    let sections = Sections::read(wasm)?;
    let (metadata, metadata_problem) = match sections.metadata.map(Metadata::parse) {
        None => (None, None),
        Some(Ok(metadata)) => (Some(metadata), None),
        Some(Err(error)) => (None, Some(error.to_string())),
    };
    let (abi, problem) = match metadata_problem {
        Some(problem) => (None, Some(problem)),
        None => recognise::abi(metadata.as_ref(), &sections.imports, &sections.exports),
    };
    Ok(Inspection {
        abi,
        metadata,
        imports: sections.imports,
        exports: sections.exports,
        digest: format!("sha256:{}", hex::encode(Sha256::digest(wasm))),
        size: wasm.len() as u64,
        problem,
    })
}

// === impl Inspection ===

impl Inspection {
    /// The host calls that the module's author asks for.
    pub fn host_capabilities(&self) -> &[String] {
        self.metadata
            .as_ref()
            .map_or(&[], |metadata| &metadata.host_capabilities)
    }
}

// === impl Sections ===

impl<'a> Sections<'a> {
    fn read(wasm: &'a [u8]) -> Result<Self, InspectError> {
        if wasm.len() > MAX_MODULE_BYTES {
            return Err(InspectError::TooLarge { size: wasm.len() });
        }
        if Parser::is_component(wasm) {
            return Err(InspectError::Component);
        }
        let mut sections = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            sections.add(payload?)?;
        }
        Ok(sections)
    }

    fn add(&mut self, payload: Payload<'a>) -> Result<(), InspectError> {
        match payload {
            Payload::ImportSection(reader) => {
                for import in reader.into_imports() {
                    let import = import?;
                    self.imports.push(Import {
                        module: import.module.to_owned(),
                        name: import.name.to_owned(),
                        kind: import_kind(&import.ty).to_owned(),
                    });
                }
            }
            Payload::ExportSection(reader) => {
                for export in reader {
                    let export = export?;
                    self.exports.push(Export {
                        name: export.name.to_owned(),
                        kind: export_kind(export.kind).to_owned(),
                    });
                }
            }
            Payload::CustomSection(custom) if custom.name() == metadata::SECTION => {
                self.metadata = Some(custom.data());
            }
            _ => {}
        }
        Ok(())
    }
}

fn import_kind(ty: &TypeRef) -> &'static str {
    match ty {
        TypeRef::Func(_) | TypeRef::FuncExact(_) => "func",
        TypeRef::Table(_) => "table",
        TypeRef::Memory(_) => "memory",
        TypeRef::Global(_) => "global",
        TypeRef::Tag(_) => "tag",
    }
}

fn export_kind(kind: ExternalKind) -> &'static str {
    match kind {
        ExternalKind::Func | ExternalKind::FuncExact => "func",
        ExternalKind::Table => "table",
        ExternalKind::Memory => "memory",
        ExternalKind::Global => "global",
        ExternalKind::Tag => "tag",
    }
}

/// `Option<Abi>` by its name.
mod abi_name {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::abi::Abi;

    pub(super) fn serialize<S: Serializer>(
        abi: &Option<Abi>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        abi.map(Abi::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Abi>, D::Error> {
        let name: Option<String> = Option::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(serde::de::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests;
