//! Policy manifests on disk, read with the same parser as everywhere else.

use std::path::Path;

use anyhow::{Context as _, bail};
use assent_api::{
    Manifest, Options, Parsed, json,
    parse::{self, Errors, ProtectedResources},
    yaml,
};
use serde_json::Value;

/// Parses a manifest, which must contain exactly one policy.
pub(crate) fn read(path: &Path, text: &str) -> anyhow::Result<Box<Parsed>> {
    let failed = || format!("failed to read the manifest {}", path.display());
    let values = values(path, text).with_context(failed)?;
    let options = Options {
        standalone: true,
        // The operator of a cluster decides on that.
        protected_resources: ProtectedResources::none(),
        ..Options::default()
    };
    let mut policies = Vec::new();
    for value in &values {
        let manifest = parse::manifest(value, &options).map_err(|errors| listed(&errors));
        if let Manifest::Policy(policy) = manifest.with_context(failed)? {
            policies.push(policy);
        }
    }
    let found = policies.len();
    match policies.pop() {
        Some(policy) if found == 1 => Ok(policy),
        Some(_) => bail!(
            "the manifest {} has {found} policies; put the policy to use into a separate file",
            path.display()
        ),
        None => bail!("the manifest {} has no policy", path.display()),
    }
}

/// Parses settings, one YAML or JSON object, and returns them as canonical JSON.
pub(crate) fn settings(path: &Path, text: &str) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read the settings in {}", path.display());
    let mut values = values(path, text).with_context(failed)?;
    match (values.pop(), values.is_empty()) {
        (Some(value @ Value::Object(_)), true) => Ok(assent_api::canonical::to_vec(&value)),
        _ => Err(anyhow::anyhow!(
            "settings must be one YAML or JSON object, such as {{}}"
        ))
        .with_context(failed),
    }
}

/// Parses every document of the text. Files named `.json`, and texts that begin with `{`, are parsed as
/// JSON, which is stricter about numbers and strings than YAML.
fn values(path: &Path, text: &str) -> anyhow::Result<Vec<Value>> {
    let named = path
        .extension()
        .is_some_and(|extension| extension == "json");
    if named || text.trim_start().starts_with('{') {
        return Ok(vec![json::from_str(text)?]);
    }
    let documents = yaml::load(text).into_iter();
    Ok(documents
        .map(|document| document.value)
        .collect::<Result<_, _>>()?)
}

/// A single error stays on the line; several follow on lines of their own.
fn listed(errors: &Errors) -> anyhow::Error {
    match errors.0.as_slice() {
        [one] => anyhow::anyhow!("{one}"),
        many => {
            let lines: Vec<String> = many.iter().map(|error| format!("\n  {error}")).collect();
            anyhow::anyhow!("{}", lines.concat())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const POLICY: &str = "apiVersion: policies.assent.dev/v1alpha1
kind: ClusterAdmissionPolicy
metadata: {name: one}
spec:
  module: file://policy.wasm
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
";

    fn error(name: &str, text: &str) -> String {
        format!("{:#}", read(Path::new(name), text).unwrap_err())
    }

    #[test]
    fn manifest_must_have_one_policy() {
        let policy = read(Path::new("p.yaml"), POLICY).unwrap();
        assert_eq!(policy.key.as_str(), "cluster/one");
        let twice = format!("{POLICY}---\n{POLICY}");
        assert!(error("p.yaml", &twice).contains("has 2 policies"));
        assert!(error("p.yaml", "").contains("has no policy"));
    }

    #[test]
    fn errors_name_file_and_field() {
        let wrong = POLICY.replace("rules", "rulez");
        let error = error("p.yaml", &wrong);
        assert!(
            error.contains("p.yaml") && error.contains("spec.rulez"),
            "{error}"
        );
    }

    #[test]
    fn settings_must_be_one_object() {
        let read = |name: &str, text| settings(Path::new(name), text);
        assert_eq!(
            read("s.yaml", "b: 1\na: [x]").unwrap(),
            br#"{"a":["x"],"b":1}"#
        );
        assert_eq!(read("s", r#"{"b": 1}"#).unwrap(), br#"{"b":1}"#);
        for (name, text) in [
            ("s.yaml", ""),
            ("s.yaml", "- 1"),
            ("s.json", "a: 1"),
            ("s", "{"),
        ] {
            let error = format!("{:#}", read(name, text).unwrap_err());
            assert!(
                error.contains("failed to read the settings in s"),
                "{error}"
            );
        }
    }
}
