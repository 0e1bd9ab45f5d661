//! Manifests as users write them.

use std::fmt;

/// A policy under construction; prints as YAML.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    namespace: Option<String>,
    module: String,
    settings: String,
    annotation: Option<(String, String)>,
    lines: Vec<String>,
}

/// A PolicyServer.
pub fn server(name: &str) -> String {
    format!(
        "apiVersion: policies.assent.dev/v1alpha1\nkind: PolicyServer\nmetadata:\n  name: {name}\nspec: {{}}\n"
    )
}

// === impl Policy ===

impl Policy {
    /// A cluster policy with the module `accept.wasm` beside it.
    pub fn cluster(name: &str) -> Self {
        Self {
            name: name.into(),
            namespace: None,
            module: "accept.wasm".into(),
            settings: "{}".into(),
            annotation: None,
            lines: Vec::new(),
        }
    }

    /// A policy of one namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..Self::cluster(name)
        }
    }

    /// With another module file.
    #[must_use]
    pub fn module(self, module: &str) -> Self {
        Self {
            module: module.into(),
            ..self
        }
    }

    /// With settings, in flow style.
    #[must_use]
    pub fn settings(self, settings: &str) -> Self {
        Self {
            settings: settings.into(),
            ..self
        }
    }

    /// For another server than `default`.
    #[must_use]
    pub fn server(self, server: &str) -> Self {
        self.line(&format!("policyServer: {server}"))
    }

    /// With one more line in its spec.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.into());
        self
    }

    /// With an annotation.
    #[must_use]
    pub fn annotation(self, name: &str, value: &str) -> Self {
        Self {
            annotation: Some((name.into(), value.into())),
            ..self
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.namespace {
            Some(_) => "AdmissionPolicy",
            None => "ClusterAdmissionPolicy",
        };
        writeln!(
            f,
            "apiVersion: policies.assent.dev/v1alpha1\nkind: {kind}\nmetadata:"
        )?;
        writeln!(f, "  name: {}", self.name)?;
        if let Some(namespace) = &self.namespace {
            writeln!(f, "  namespace: {namespace}")?;
        }
        if let Some((name, value)) = &self.annotation {
            writeln!(f, "  annotations:\n    {name}: \"{value}\"")?;
        }
        writeln!(
            f,
            "spec:\n  module: file://{}\n  settings: {}",
            self.module, self.settings
        )?;
        for line in &self.lines {
            writeln!(f, "  {line}")?;
        }
        f.write_str(concat!(
            "  rules:\n",
            "    - apiGroups: [\"\"]\n",
            "      apiVersions: [v1]\n",
            "      resources: [pods]\n",
            "      operations: [CREATE]\n",
        ))
    }
}
