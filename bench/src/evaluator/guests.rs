//! The example policies, one per ABI, and the smallest that there is, as modules and as artefacts.

use std::{fs, path::Path, sync::Arc};

use anyhow::Context as _;
use assent_core::{Digest, Policy, PolicyKey, policy::Content};
use assent_wasm::{Abi, Engine, EngineConfig};
use bytes::Bytes;

/// The examples with the engine that they are compiled for.
pub(crate) struct Guests {
    engine: Engine,
    all: Vec<Guest>,
}

/// One module and how it is used.
#[derive(Clone)]
pub(crate) struct Guest {
    pub(crate) abi: Abi,
    /// What its rows are called.
    pub(crate) label: &'static str,
    /// Folder below the examples, or what there is instead.
    pub(crate) name: &'static str,
    settings: &'static str,
    /// The portable module.
    pub(crate) wasm: Bytes,
    /// The same, compiled for the engine.
    pub(crate) artefact: Bytes,
}

/// Settings with which the review is allowed after it was looked at whole.
const EXAMPLES: [(Abi, &str, &str); 5] = [
    (
        Abi::Wapc,
        "no-privileged",
        r#"{"exemptNamespaces":["storage-system"]}"#,
    ),
    (
        Abi::Opa,
        "require-owner",
        r#"{"annotation":"example.com/owner","pattern":"^team-[a-z0-9-]+$"}"#,
    ),
    (
        Abi::Gatekeeper,
        "allowed-repos",
        r#"{"repos":["registry.example.com","registry.k8s.io"]}"#,
    ),
    (
        Abi::Wasi,
        "image-tag",
        r#"{"deniedTags":["latest","stable","edge"]}"#,
    ),
    (Abi::Wapc, TINY, "{}"),
];

/// The one that is no example.
const TINY: &str = "tiny";

// === impl Guests ===

impl Guests {
    /// Reads and compiles the examples.
    pub(crate) fn load(folder: &Path) -> anyhow::Result<Self> {
        Self::some(folder, |_| true)
    }

    /// Reads and compiles the one with this label.
    pub(crate) fn one(folder: &Path, label: &str) -> anyhow::Result<Self> {
        Self::some(folder, |known| known == label)
    }

    fn some(folder: &Path, wanted: impl Fn(&str) -> bool) -> anyhow::Result<Self> {
        let engine = Engine::new(EngineConfig::default())?;
        let label = |abi: Abi, name| if name == TINY { TINY } else { abi.as_str() };
        let load = |(abi, name, settings): (Abi, &'static str, &'static str)| {
            let wasm = match name {
                TINY => wat::parse_str(include_str!("tiny.wat"))?,
                name => example(&folder.join(name).join("policy.wasm"))?,
            };
            let artefact = engine.precompile(&wasm)?;
            Ok::<_, anyhow::Error>(Guest {
                abi,
                label: label(abi, name),
                name,
                settings,
                wasm: wasm.into(),
                artefact: artefact.into(),
            })
        };
        let examples = EXAMPLES.into_iter();
        let examples = examples.filter(|(abi, name, _)| wanted(label(*abi, name)));
        let all = examples.map(load).collect::<Result<_, _>>()?;
        Ok(Self { engine, all })
    }

    /// What the modules were compiled for; other processes of this build have the same.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// One per ABI, and the smallest.
    pub(crate) fn all(&self) -> &[Guest] {
        &self.all
    }

    /// The one that sets of many policies are made of: a Rust policy of usual size.
    pub(crate) fn usual(&self) -> &Guest {
        &self.all[0]
    }
}

fn example(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| {
        let path = path.display();
        format!("failed to read {path}: run this in the repository's root, or give --policies")
    })
}

// === impl Guest ===

impl Guest {
    /// A module that is no example.
    pub(crate) fn new(
        abi: Abi,
        label: &'static str,
        settings: &'static str,
        wasm: Vec<u8>,
        artefact: Vec<u8>,
    ) -> Self {
        Self {
            abi,
            label,
            name: label,
            settings,
            wasm: wasm.into(),
            artefact: artefact.into(),
        }
    }

    /// The same code as another module: a custom section makes the digest differ.
    pub(crate) fn variant(&self, number: usize) -> Self {
        const NAME: &[u8] = b"assent.bench";
        let number = number.to_string();
        let length = 1 + NAME.len() + number.len();
        let mut wasm = self.wasm.to_vec();
        // Lengths below 128 are one byte in a module.
        wasm.push(0);
        wasm.push(u8::try_from(length).expect("the section must be short"));
        wasm.push(u8::try_from(NAME.len()).expect("the name must be short"));
        wasm.extend_from_slice(NAME);
        wasm.extend_from_slice(number.as_bytes());
        Self {
            wasm: wasm.into(),
            ..self.clone()
        }
    }

    /// A revision of a policy with this module; each generation has settings of its own.
    pub(crate) fn revision(&self, name: &str, generation: i64) -> Arc<Policy> {
        // Only sets of the usual policy change; the others stay at their first generation.
        let settings = match generation {
            1 => self.settings.to_owned(),
            n => format!(r#"{{"exemptNamespaces":["storage-{n}"]}}"#),
        };
        let content = Content::new(
            Digest::of(&self.wasm),
            self.abi.as_str(),
            settings.into_bytes().into(),
        );
        let size = self.wasm.len() as u64;
        let key = PolicyKey::cluster(name);
        Arc::new(Policy::new(
            key,
            generation,
            "0123456789abcdef",
            content,
            size,
        ))
    }

    /// The settings of the first generation.
    pub(crate) fn settings(&self) -> &'static str {
        self.settings
    }
}
