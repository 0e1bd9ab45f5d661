//! `assent new`: starts a policy.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use assent_core::PolicyKey;
use clap::ValueEnum;

use crate::{exit::Exit, out};

/// Starts a policy: a directory with sources, a manifest and test cases.
///
/// The policy requires a label, which its settings name. It builds and passes its tests: change it from there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Language of the policy
    #[arg(value_name = "LANGUAGE")]
    language: Language,

    /// Name of the policy, and of the directory to create
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,

    /// Create the directory in this one
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  assent new rego require-owner && assent test require-owner
  assent new rust require-owner && require-owner/build.sh && assent test require-owner

Exit codes: 0 = created, 2 = not created; nothing that exists is changed.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// Rego; needs no tools
    Rego,
    /// CEL; needs no tools
    Cel,
    /// Rust; needs cargo and the target wasm32-wasip1
    Rust,
    /// Go; needs Go 1.21 or newer
    Go,
}

/// A file of a project: its path and its template.
type File = (&'static str, &'static str);

const COMMON: [File; 2] = [
    (
        "manifest.yaml",
        include_str!("../templates/common/manifest.yaml"),
    ),
    (
        "tests/cases.yaml",
        include_str!("../templates/common/cases.yaml"),
    ),
];

const METADATA: File = (
    "metadata.json",
    include_str!("../templates/common/metadata.json"),
);

const SCRIPT: &str = "build.sh";

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            language,
            name,
            directory,
        } = self;
        let project = directory.join(&name);
        fs::create_dir(&project).with_context(|| {
            format!(
                "failed to create {}: choose a name that does not exist yet",
                project.display()
            )
        })?;
        for (path, template) in language.files().iter().chain(&COMMON) {
            write(&project, path, &language.fill(template, &name))?;
        }
        let shown = project.display();
        out::line(format_args!("created {shown}"))?;
        if language.is_compiled() {
            out::line(format_args!("build it:  {shown}/{SCRIPT}"))?;
        }
        out::line(format_args!("test it:   assent test {shown}"))?;
        out::line(format_args!("run it:    assent up --policies {shown}"))?;
        Ok(Exit::Yes)
    }
}

// === impl Language ===

impl Language {
    /// The files that only this language has.
    fn files(self) -> &'static [File] {
        match self {
            Self::Rego => &[("policy.rego", include_str!("../templates/rego/policy.rego"))],
            Self::Cel => &[(
                "policy.cel.yaml",
                include_str!("../templates/cel/policy.cel.yaml"),
            )],
            Self::Rust => &[
                ("Cargo.toml", include_str!("../templates/rust/Cargo.toml")),
                ("src/lib.rs", include_str!("../templates/rust/lib.rs")),
                (SCRIPT, include_str!("../templates/rust/build.sh")),
                (".gitignore", "/target\n/policy.wasm\n"),
                METADATA,
            ],
            Self::Go => &[
                ("go.mod", include_str!("../templates/go/go.mod")),
                ("main.go", include_str!("../templates/go/main.go")),
                (SCRIPT, include_str!("../templates/go/build.sh")),
                (".gitignore", "/policy.wasm\n"),
                METADATA,
            ],
        }
    }

    fn is_compiled(self) -> bool {
        matches!(self, Self::Rust | Self::Go)
    }

    /// What the manifest names.
    fn module(self) -> &'static str {
        match self {
            Self::Rego => "policy.rego",
            Self::Cel => "policy.cel.yaml",
            Self::Rust | Self::Go => "policy.wasm",
        }
    }

    fn fill(self, template: &str, name: &str) -> String {
        let mode = match self {
            Self::Go => "wasi",
            _ => "kubewarden-wapc",
        };
        template
            .replace("{{name}}", name)
            .replace("{{ident}}", &name.replace('-', "_"))
            .replace("{{module}}", self.module())
            .replace("{{mode}}", mode)
    }
}

fn write(project: &Path, path: &str, text: &str) -> anyhow::Result<()> {
    let path = project.join(path);
    let failed = || format!("failed to write {}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    fs::write(&path, text).with_context(failed)?;
    if path.ends_with(SCRIPT) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).with_context(failed)?;
    }
    Ok(())
}

/// Checks a name: of an object, a crate and a Rego package.
fn name(text: &str) -> anyhow::Result<String> {
    let valid = PolicyKey::parse(&format!("cluster/{text}")).is_some() && !text.contains('.');
    if !valid || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        bail!(
            "{text:?} is not a name for a policy: use lower-case letters, digits and dashes, and begin with a letter"
        );
    }
    Ok(text.to_owned())
}
