//! Describes a module without compiling it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef};

use crate::{
    abi::Abi,
    limits::MAX_MODULE_BYTES,
    metadata::{self, Metadata},
};

mod recognise;

pub(crate) use recognise::has;

/// The description of a module from its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// Its ABI, if it was recognised.
    #[serde(with = "abi_name")]
    pub abi: Option<Abi>,
    /// Its metadata section.
    pub metadata: Option<Metadata>,
    /// Its imports.
    pub imports: Vec<Import>,
    /// Its exports.
    pub exports: Vec<Export>,
    /// `sha256:<hex>` of the module.
    pub digest: String,
    /// Bytes of the module.
    pub size: u64,
    /// Why it can't be run; `None` if no problem was found.
    pub problem: Option<String>,
    /// Whether it is Rego for Gatekeeper that mentions `data.inventory`. An artefact without the field was made by a
    /// version that did not look, and is not loaded.
    pub reads_inventory: bool,
}

/// An import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// First part of the name.
    pub module: String,
    /// Second part of the name.
    pub name: String,
    /// `func`, `memory`, `table`, `global` or `tag`.
    pub kind: String,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// `func`, `memory`, `table`, `global` or `tag`.
    pub kind: String,
}

/// Why bytes are not a module.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Larger than the limit.
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

/// Values of exported globals, by name; none if the value is not an `i32` constant.
pub(crate) type Constants = BTreeMap<String, Option<i32>>;

/// The raw findings of one pass over the sections.
#[derive(Default)]
struct Sections<'a> {
    imports: Vec<Import>,
    exports: Vec<Export>,
    metadata: Option<&'a [u8]>,
    /// Of each global its value, if it is an `i32` constant; imported globals come first.
    globals: Vec<Option<i32>>,
    constants: Constants,
    /// Initial contents of its memory.
    data: Vec<&'a [u8]>,
}

/// The constant that every reference to `data.inventory` compiles to.
const INVENTORY: &[u8] = b"inventory";

/// Describes a module: its ABI, metadata, imports and exports.
///
/// Fails only for bytes that are not a module; a module that can't be run is described with its `problem`.
pub fn inspect(wasm: &[u8]) -> Result<Inspection, InspectError> {
    let sections = Sections::read(wasm)?;
    let (metadata, metadata_problem) = match sections.metadata.map(Metadata::parse) {
        None => (None, None),
        Some(Ok(metadata)) => (Some(metadata), None),
        Some(Err(error)) => (None, Some(error.to_string())),
    };
    let (abi, problem) = match metadata_problem {
        Some(problem) => (None, Some(problem)),
        None => recognise::abi(metadata.as_ref(), &sections),
    };
    Ok(Inspection {
        abi,
        metadata,
        reads_inventory: abi == Some(Abi::Gatekeeper) && sections.has_string(INVENTORY),
        imports: sections.imports,
        exports: sections.exports,
        digest: format!("sha256:{}", hex::encode(Sha256::digest(wasm))),
        size: wasm.len() as u64,
        problem,
    })
}

// === impl Inspection ===

impl Inspection {
    /// The host calls that the module's author lists; `None` without a list.
    pub fn host_capabilities(&self) -> Option<&[String]> {
        self.metadata.as_ref()?.host_capabilities.as_deref()
    }

    /// Why the module must see other objects of the cluster to evaluate a request: a clause for people. `None` if
    /// nothing shows that it must. Without its objects a Rego policy finds no violation and allows everything.
    pub fn required_context(&self) -> Option<String> {
        let declared = self.metadata.iter();
        let declared = declared.flat_map(|metadata| &metadata.context_aware_resources);
        let kinds: Vec<_> = declared
            .map(|one| format!("{} ({})", one.kind, one.api_version))
            .collect();
        if !kinds.is_empty() {
            let kinds = kinds.join(", ");
            return Some(format!(
                "the module's metadata declares that it reads {kinds}"
            ));
        }
        self.reads_inventory
            .then(|| "the module reads data.inventory".to_owned())
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
                    if let TypeRef::Global(_) = import.ty {
                        self.globals.push(None);
                    }
                    self.imports.push(Import {
                        module: import.module.to_owned(),
                        name: import.name.to_owned(),
                        kind: import_kind(&import.ty).to_owned(),
                    });
                }
            }
            Payload::GlobalSection(reader) => {
                for global in reader {
                    self.globals.push(constant(&global?)?);
                }
            }
            Payload::ExportSection(reader) => {
                for export in reader {
                    let export = export?;
                    let value = match export.kind {
                        ExternalKind::Global => self.globals.get(export.index as usize),
                        _ => None,
                    };
                    let name = export.name.to_owned();
                    self.constants.insert(name, value.copied().flatten());
                    self.exports.push(Export {
                        name: export.name.to_owned(),
                        kind: export_kind(export.kind).to_owned(),
                    });
                }
            }
            Payload::DataSection(reader) => {
                for data in reader {
                    self.data.push(data?.data);
                }
            }
            Payload::CustomSection(custom) if custom.name() == metadata::SECTION => {
                self.metadata = Some(custom.data());
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a string is among the constants of a Rego module, which end with a zero byte each.
    fn has_string(&self, text: &[u8]) -> bool {
        let has = |data: &[u8]| data.split(|byte| *byte == 0).any(|part| part == text);
        self.data.iter().any(|data| has(data))
    }
}

/// The value of an immutable global that is initialised with an `i32` constant.
fn constant(global: &wasmparser::Global<'_>) -> Result<Option<i32>, InspectError> {
    if global.ty.mutable {
        return Ok(None);
    }
    let mut operators = global.init_expr.get_operators_reader();
    Ok(match operators.read()? {
        Operator::I32Const { value } => Some(value),
        _ => None,
    })
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
