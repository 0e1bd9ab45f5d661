//! Test cases of policies: a public format, described in docs/testing-policies.md.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    input::{self, Document},
    objects::{self, ClusterContent},
    request::{self, Operation, RequestOptions},
};

/// A case. Paths in it are relative to its file.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The document that it is written in.
    pub(crate) source: String,
    pub(crate) dir: PathBuf,
    /// Module or manifest, as it is written.
    pub(crate) policy: Option<String>,
    /// None keeps those of the manifest.
    pub(crate) settings: Option<String>,
    /// What the policy can know of a cluster, if the case says so.
    pub(crate) content: Option<ClusterContent>,
    pub(crate) question: Question,
    pub(crate) expect: Expect,
}

/// What a case asks.
#[derive(Debug)]
pub(crate) enum Question {
    /// Whether settings are valid.
    Settings,
    /// The verdict about a review, a request, a CheckRequest of Envoy or, for raw policies, any document: JSON.
    Request(String),
}

/// What must come out. What is not given is not compared, except that an answer without `patched` and `patch` must not
/// change the object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Expect {
    #[serde(default)]
    pub(crate) allowed: Option<bool>,
    #[serde(default)]
    pub(crate) valid: Option<bool>,
    #[serde(default)]
    pub(crate) message: Option<String>,
    #[serde(default, alias = "message_contains")]
    pub(crate) message_contains: Option<String>,
    #[serde(default)]
    pub(crate) code: Option<u16>,
    #[serde(default)]
    pub(crate) warnings: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) patched: Option<Value>,
    #[serde(default)]
    pub(crate) patch: Option<Value>,
}

/// Several cases of one policy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSuite {
    #[serde(default)]
    version: Option<Value>,
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    settings: Option<Box<RawValue>>,
    #[serde(default)]
    objects: Option<Vec<Value>>,
    #[serde(default)]
    objects_file: Option<PathBuf>,
    #[serde(default)]
    allow_all_access: Option<bool>,
    cases: Vec<RawCase>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawCase {
    #[serde(default)]
    version: Option<Value>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    settings: Option<Box<RawValue>>,
    #[serde(default)]
    request: Option<Box<RawValue>>,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    file: Option<PathBuf>,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    old_file: Option<PathBuf>,
    #[serde(default)]
    operation: Option<Operation>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    resource: Option<String>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    objects: Option<Vec<Value>>,
    #[serde(default)]
    objects_file: Option<PathBuf>,
    #[serde(default)]
    allow_all_access: Option<bool>,
    expect: Expect,
}

/// What the policy can know of a cluster.
#[derive(Clone, Default)]
struct RawContent {
    objects: Option<Vec<Value>>,
    objects_file: Option<PathBuf>,
    allow_all_access: Option<bool>,
}

/// The only version of the format. Files that name none are of this version.
const VERSION: u64 = 1;

/// Whether a document is a Kubernetes object, which a case never is.
pub(crate) fn is_object(value: &Value) -> bool {
    value["kind"].is_string() && value["apiVersion"].is_string()
}

/// Whether a document looks like a case or a list of cases.
pub(crate) fn is_case(value: &Value) -> bool {
    !is_object(value) && (value.get("expect").is_some() || value.get("cases").is_some())
}

/// Reads the cases of a document.
pub(crate) fn parse(document: &Document) -> anyhow::Result<Vec<Case>> {
    let path = document.path.as_path();
    let failed = || format!("failed to read the case {}", document.source);
    let value = document.value();
    let suite = value.get("cases").is_some();
    let mut suite = if suite {
        serde_json::from_str(&document.json).with_context(failed)?
    } else {
        let case: RawCase = serde_json::from_str(&document.json).with_context(failed)?;
        RawSuite {
            version: None,
            policy: None,
            settings: None,
            objects: None,
            objects_file: None,
            allow_all_access: None,
            cases: vec![case],
        }
    };
    check_version(suite.version.as_ref()).with_context(failed)?;
    let cases = std::mem::take(&mut suite.cases);
    let several = cases.len() > 1;
    let mut read = Vec::new();
    for (number, case) in cases.into_iter().enumerate() {
        let mut name = document.source.clone();
        if several {
            name += &format!(", case {}", number + 1);
        }
        let case = case.read(path, &name, &suite);
        read.push(case.with_context(|| format!("failed to read the case {name}"))?);
    }
    Ok(read)
}

fn check_version(version: Option<&Value>) -> anyhow::Result<()> {
    match version {
        None => Ok(()),
        Some(version) if version.as_u64() == Some(VERSION) => Ok(()),
        Some(version) => {
            bail!("version {version} is not known; this program reads version {VERSION}")
        }
    }
}

// === impl RawCase ===

impl RawCase {
    fn read(self, path: &Path, source: &str, suite: &RawSuite) -> anyhow::Result<Case> {
        check_version(self.version.as_ref())?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        let question = self.question(&dir)?;
        self.expect.check(&question)?;
        let content = self.content(suite);
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy();
        let settings = self.settings.or_else(|| suite.settings.clone());
        let settings = settings.filter(|settings| settings.get() != "null");
        if let Some(settings) = &settings
            && !settings.get().starts_with('{')
        {
            bail!("settings must be an object, such as {{}}");
        }
        Ok(Case {
            name: self.name.unwrap_or_else(|| stem().into_owned()),
            source: source.to_owned(),
            policy: self.policy.or_else(|| suite.policy.clone()),
            settings: settings.map(|settings| settings.get().to_owned()),
            content: content.read(&dir)?,
            question,
            expect: self.expect,
            dir,
        })
    }

    fn question(&self, dir: &Path) -> anyhow::Result<Question> {
        let object = one_of(
            self.object.as_ref(),
            self.file.as_deref(),
            dir,
            ["object", "file"],
        )?;
        let old = (self.old_object.as_ref(), self.old_file.as_deref());
        let old = one_of(old.0, old.1, dir, ["oldObject", "oldFile"])?;
        match (&self.request, object) {
            (None, None) if self.expect.valid.is_some() => Ok(Question::Settings),
            (None, None) => bail!("it has no request, object or file to evaluate"),
            (Some(_), Some(_)) => bail!("it has a request and an object; leave one of them out"),
            (Some(request), None) => {
                if old.is_some() || self.options() != RequestOptions::default() {
                    bail!("a request is complete: write operation, user and oldObject into it");
                }
                Ok(Question::Request(request.get().to_owned()))
            }
            (None, Some(object)) => {
                let made = request::make(&object, old.as_ref(), &self.options())?;
                Ok(Question::Request(made.to_string()))
            }
        }
    }

    /// Objects of a case replace those of its suite.
    fn content(&self, suite: &RawSuite) -> RawContent {
        let own = self.objects.is_some() || self.objects_file.is_some();
        let (objects, objects_file) = match own {
            true => (&self.objects, &self.objects_file),
            false => (&suite.objects, &suite.objects_file),
        };
        RawContent {
            objects: objects.clone(),
            objects_file: objects_file.clone(),
            allow_all_access: self.allow_all_access.or(suite.allow_all_access),
        }
    }

    fn options(&self) -> RequestOptions {
        RequestOptions {
            operation: self.operation,
            user: self.user.clone(),
            groups: self.groups.clone(),
            namespace: self.namespace.clone(),
            resource: self.resource.clone(),
            dry_run: self.dry_run,
        }
    }
}

/// An object that is written in the case or in a file of its own.
fn one_of(
    inline: Option<&Value>,
    file: Option<&Path>,
    dir: &Path,
    [name, file_name]: [&str; 2],
) -> anyhow::Result<Option<Value>> {
    match (inline, file) {
        (None, None) => Ok(None),
        (Some(value), None) => Ok(Some(value.clone())),
        (Some(_), Some(_)) => bail!("it has {name} and {file_name}; leave one of them out"),
        (None, Some(file)) => {
            let path = dir.join(file);
            let documents = input::read_documents(&path)?;
            match documents.as_slice() {
                [one] => Ok(Some(one.value())),
                many => bail!("{} has {} documents, not one", path.display(), many.len()),
            }
        }
    }
}

// === impl RawContent ===

impl RawContent {
    fn read(&self, dir: &Path) -> anyhow::Result<Option<ClusterContent>> {
        let cluster = match (&self.objects, &self.objects_file) {
            (None, None) => None,
            (Some(objects), None) => Some(objects::read_values(objects)?),
            (None, Some(file)) => Some(objects::read_files(&dir.join(file))?),
            (Some(_), Some(_)) => bail!("it has objects and objectsFile; leave one of them out"),
        };
        if cluster.is_none() && self.allow_all_access.is_none() {
            return Ok(None);
        }
        Ok(Some(ClusterContent {
            cluster,
            allow_all_access: self.allow_all_access.unwrap_or_default(),
        }))
    }
}

// === impl Expect ===

impl Expect {
    fn check(&self, question: &Question) -> anyhow::Result<()> {
        match (question, self.allowed, self.valid) {
            (Question::Request(_), Some(_), None) => {}
            (Question::Request(_), None, Some(_)) => {
                bail!("expect.valid is for cases without a request")
            }
            (Question::Request(_), ..) => bail!("expect needs allowed: true or false"),
            (Question::Settings, None, Some(_)) => {}
            (Question::Settings, ..) => bail!("expect needs valid: true or false"),
        }
        let verdict = self.patched.is_some()
            || self.patch.is_some()
            || self.code.is_some()
            || self.warnings.is_some();
        if matches!(question, Question::Settings) && verdict {
            bail!("settings have a message at most: expect no code, warnings or patch");
        }
        if self.allowed == Some(false) && (self.patched.is_some() || self.patch.is_some()) {
            bail!("a denied request is not changed: expect no patch");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
