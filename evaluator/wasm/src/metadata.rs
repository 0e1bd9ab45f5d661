//! The custom section `io.kubewarden.metadata`, in which the author of a policy describes the module.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::abi::Abi;

/// Name of the custom section.
pub(crate) const SECTION: &str = "io.kubewarden.metadata";

/// Longest section that is read: real ones are a few KB of rules and a README.
const MAX_BYTES: usize = 4 << 20;

/// The description of a module by its author.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Version of the guest protocol: `v1`. Tools write `Unknown` for ABIs other than waPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// The admission rules the author suggests, as written.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub rules: Vec<serde_json::Value>,
    /// Free annotations: title, source, usage.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Whether the author means the policy to change objects.
    #[serde(default, deserialize_with = "null_as_default")]
    pub mutating: bool,
    /// Whether the policy makes sense on existing objects.
    #[serde(default = "yes")]
    pub background_audit: bool,
    /// The ABI by Kubewarden's names; absent means waPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_mode: Option<String>,
    /// What the policy evaluates.
    #[serde(default, deserialize_with = "null_as_default")]
    pub policy_type: PolicyType,
    /// Kinds that the policy wants to read.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// Host calls that the policy makes, such as `oci/v1/verify` or `net/*`; `None` if the author lists none, as in
    /// modules that are older than the list. An empty list means that the policy makes no host calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_capabilities: Option<Vec<String>>,
    /// Shown to people, not enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_kubewarden_version: Option<String>,
}

/// What a policy evaluates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyType {
    /// Admission requests.
    #[default]
    Kubernetes,
    /// Any JSON document.
    Raw,
}

/// A kind that a policy wants to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    /// Group and version, as in a manifest.
    pub api_version: String,
    /// The kind.
    pub kind: String,
}

/// Why metadata is refused.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// Larger than any sensible description.
    #[error("the metadata section has {0} bytes, more than the {MAX_BYTES} allowed")]
    TooLarge(usize),
    /// Not the JSON that is expected.
    #[error("failed to parse the metadata section {SECTION}: {0}")]
    Json(#[from] serde_json::Error),
    /// An unsupported version of the guest protocol.
    #[error("protocolVersion {0:?} is not supported: expected \"v1\"")]
    Protocol(String),
    /// An unknown ABI.
    #[error("executionMode {0:?} is not known: expected kubewarden-wapc, opa, gatekeeper or wasi")]
    ExecutionMode(String),
}

// === impl Metadata ===

impl Metadata {
    /// Reads and checks the bytes of the custom section.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        if bytes.len() > MAX_BYTES {
            return Err(MetadataError::TooLarge(bytes.len()));
        }
        let metadata: Self = serde_json::from_slice(bytes)?;
        let adapter = metadata.abi()?.adapter();
        match &metadata.protocol_version {
            Some(version) if !adapter.accepts_protocol(version) => {
                Err(MetadataError::Protocol(version.clone()))
            }
            _ => Ok(metadata),
        }
    }

    /// The ABI that the metadata names.
    pub fn abi(&self) -> Result<Abi, MetadataError> {
        let Some(mode) = self.execution_mode.as_deref() else {
            return Ok(Abi::Wapc);
        };
        Abi::from_execution_mode(mode).ok_or_else(|| MetadataError::ExecutionMode(mode.to_owned()))
    }
}

fn yes() -> bool {
    true
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
