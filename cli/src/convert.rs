//! `assent convert`: makes manifests of policies for other engines.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

use crate::{
    build::read_text,
    exit::Exit,
    out::{self, clean},
};

mod gatekeeper;
mod kubewarden;
#[cfg(test)]
mod tests;

/// Makes manifests of policies for other engines.
///
/// Takes a ValidatingAdmissionPolicy and its binding (the expressions stay as they are written), policies and
/// PolicyServers of Kubewarden (the modules stay), or ConstraintTemplates and constraints of Gatekeeper (the Rego
/// text stays). What has no counterpart is reported on standard error, and never left out silently. A policy without
/// failurePolicy denies requests that nobody answers, which Gatekeeper allows by default.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Manifests as YAML or JSON, in one file or several
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  assent convert policy-and-binding.yaml > manifest.yaml
  kubectl get clusteradmissionpolicies.policies.kubewarden.io -o yaml > old.yaml && assent convert old.yaml
  assent convert template.yaml constraint.yaml | kubectl apply -f -

Exit codes: 0 = converted, 1 = converted, but not everything could be carried over, 2 = not converted.";

/// Manifests, and what is not in them.
#[derive(Debug, Default, PartialEq)]
struct Converted {
    manifests: Vec<Value>,
    lost: Vec<String>,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut documents = Vec::new();
        for file in &self.files {
            for document in assent_yaml::load(&read_text(file)?) {
                let value = document.value;
                let value = value.with_context(|| format!("failed to read {}", file.display()))?;
                unpack(value, &mut documents);
            }
        }
        let Converted { manifests, lost } = convert(&documents)?;
        for (number, manifest) in manifests.iter().enumerate() {
            if number > 0 {
                out::line("---")?;
            }
            out::print(assent_yaml::emit(manifest))?;
        }
        for lost in &lost {
            out::note(format_args!("not carried over: {}", clean(lost)));
        }
        Ok(Exit::yes_if(lost.is_empty()))
    }
}

// === impl Converted ===

impl Converted {
    /// A manifest of ours.
    fn push(&mut self, kind: &str, from: &Value, spec: Value) {
        let mut metadata = serde_json::Map::new();
        for field in ["name", "namespace", "labels"] {
            if let Some(value) = from["metadata"].get(field) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        self.manifests.push(serde_json::json!({
            "apiVersion": assent_api::API_VERSION,
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        }));
    }

    fn lose(&mut self, object: &Value, what: impl std::fmt::Display) {
        self.lost.push(format!("{}: {what}", shown(object)));
    }
}

/// Converts documents of one engine.
fn convert(documents: &[Value]) -> anyhow::Result<Converted> {
    let of = |group: &str| {
        let is = |document: &Value| group_of(document) == group;
        documents.iter().any(is)
    };
    if let Some(other) = documents.iter().find(|one| !is_known(one)) {
        bail!(
            "{} cannot be converted; known are ValidatingAdmissionPolicies, policies of Kubewarden, and templates and constraints of Gatekeeper",
            shown(other)
        );
    }
    let engines = [
        of("admissionregistration.k8s.io"),
        of(kubewarden::GROUP),
        of(gatekeeper::TEMPLATES) || of(gatekeeper::CONSTRAINTS),
    ];
    match engines {
        [true, false, false] => {
            let manifest = assent_text::convert(documents).map_err(|why| anyhow!(why))?;
            Ok(Converted {
                manifests: vec![manifest],
                lost: Vec::new(),
            })
        }
        [false, true, false] => Ok(kubewarden::convert(documents)),
        [false, false, true] => gatekeeper::convert(documents),
        [false, false, false] => bail!("there is nothing to convert"),
        _ => bail!("convert the policies of one engine at a time"),
    }
}

fn is_known(document: &Value) -> bool {
    let group = group_of(document);
    group == "admissionregistration.k8s.io"
        || group == kubewarden::GROUP
        || group == gatekeeper::TEMPLATES
        || group == gatekeeper::CONSTRAINTS
}

/// Takes a List apart.
fn unpack(document: Value, documents: &mut Vec<Value>) {
    match (document["kind"].as_str(), document["items"].as_array()) {
        (Some(kind), Some(items)) if kind.ends_with("List") => {
            documents.extend(items.iter().cloned());
        }
        _ if document.is_null() => {}
        _ => documents.push(document),
    }
}

fn group_of(document: &Value) -> &str {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    version.split('/').next().unwrap_or_default()
}

/// Kind and name of an object.
fn shown(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let kind = text(&object["kind"]);
    format!("{kind} {}", text(&object["metadata"]["name"]))
}
