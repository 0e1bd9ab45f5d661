//! Objects, reviews and cases that are passed with `-f`.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, bail};
use assent_wasm::{AdmissionResponse, Verdict};
use serde::Serialize;
use serde_json::Value;

use super::{answer, in_mode};
use crate::{
    case::{self, Question},
    evaluate::{Host, LocalPolicy, ReadyPolicy},
    exit::Exit,
    input::{self, Document},
    objects::ClusterContent,
    out::{self, OutputArgs, clean, clean_lines},
    request::{Incoming, Operation, RequestOptions, identity, make},
};

/// The evaluation of some documents with one policy.
pub(super) struct FilesRun<'a> {
    pub(super) host: &'a Host,
    pub(super) policy: &'a LocalPolicy,
    pub(super) settings: Option<Vec<u8>>,
    /// Unless a case has its own.
    pub(super) content: ClusterContent,
    pub(super) ignore_rules: bool,
    pub(super) options: RequestOptions,
    pub(super) old_objects: Option<PathBuf>,
}

/// What is made of documents.
pub(crate) struct Items<'a> {
    pub(crate) policy: &'a LocalPolicy,
    pub(crate) options: RequestOptions,
    pub(crate) old_objects: Option<PathBuf>,
    /// Whether settings were given, which replace those of cases.
    pub(crate) has_settings: bool,
}

/// Something to evaluate.
pub(crate) struct Item {
    source: String,
    /// What it is about: `Pod shop/web`.
    about: String,
    /// A review, a request, or any document for raw policies.
    pub(crate) request: String,
    /// Of a case.
    settings: Option<Vec<u8>>,
    content: Option<ClusterContent>,
    /// Whether rules apply: what is a request already was sent for a reason.
    made: bool,
}

/// What became of an item.
enum Outcome {
    Verdict { uid: String, verdict: Verdict },
    Skipped(String),
    Error(anyhow::Error),
}

/// The JSON form is a contract with scripts.
#[derive(Serialize)]
struct Row<'a> {
    source: &'a str,
    object: &'a str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<AdmissionResponse<'a>>,
}

// === impl FilesRun ===

impl FilesRun<'_> {
    pub(super) fn run(&self, documents: &[Document], output: OutputArgs) -> anyhow::Result<Exit> {
        let items = Items {
            policy: self.policy,
            options: self.options.clone(),
            old_objects: self.old_objects.clone(),
            has_settings: self.settings.is_some(),
        };
        let items = items.read(documents)?;
        if items.is_empty() {
            bail!("there is nothing to evaluate: the input has no documents");
        }
        // A policy may need settings that only its cases have.
        let shared = items.iter().any(|item| !item.has_own());
        let ready = shared.then(|| self.prepare(self.settings.clone(), &self.content));
        let ready = ready.transpose()?;
        let outcomes: Vec<(Item, Outcome)> = items
            .into_iter()
            .map(|item| {
                let outcome = self.evaluate(ready.as_ref(), &item);
                (item, outcome.unwrap_or_else(Outcome::Error))
            })
            .collect();
        print(&outcomes, output)?;
        exit(&outcomes)
    }

    fn prepare(
        &self,
        settings: Option<Vec<u8>>,
        content: &ClusterContent,
    ) -> anyhow::Result<ReadyPolicy> {
        let services = self.host.services(self.policy, content)?;
        let ready = self.host.prepare(self.policy, settings, &services);
        ready.with_context(|| format!("failed to use {}", self.policy.loaded.name()))
    }

    fn evaluate(&self, ready: Option<&ReadyPolicy>, item: &Item) -> anyhow::Result<Outcome> {
        if item.made && !self.ignore_rules {
            let request: Value = serde_json::from_str(&item.request)?;
            if let Some(why) = self.policy.unmatched(&request) {
                return Ok(Outcome::Skipped(why));
            }
        }
        let incoming = Incoming::parse(item.request.as_bytes(), self.policy.is_raw())?;
        let verdict = match ready {
            Some(ready) if !item.has_own() => ready.evaluate(&incoming.review)?,
            _ => {
                let settings = item.settings.clone().or_else(|| self.settings.clone());
                let content = item.content.as_ref().unwrap_or(&self.content);
                let own = self.prepare(settings, content)?;
                own.evaluate(&incoming.review)?
            }
        };
        Ok(Outcome::Verdict {
            uid: incoming.uid.to_string(),
            verdict: in_mode(self.policy, verdict, &item.about),
        })
    }
}

// === impl Item ===

impl Item {
    /// Whether it has settings or objects of its own.
    fn has_own(&self) -> bool {
        self.settings.is_some() || self.content.is_some()
    }
}

// === impl Items ===

impl Items<'_> {
    /// Reads documents. What names no object and is no request is an error.
    pub(crate) fn read(&self, documents: &[Document]) -> anyhow::Result<Vec<Item>> {
        let old_objects = self.old_objects()?;
        let mut items = Vec::new();
        for document in documents {
            let made = self.items_of(document, &old_objects);
            let made = made.with_context(|| format!("failed to use {}", document.source))?;
            items.extend(made);
        }
        Ok(items)
    }

    fn items_of(
        &self,
        document: &Document,
        old_objects: &BTreeMap<String, Value>,
    ) -> anyhow::Result<Vec<Item>> {
        let value = document.value();
        if case::is_case(&value) {
            return self.cases(document);
        }
        let is_request = value["kind"] == "AdmissionReview" || value["kind"].is_object();
        if self.policy.is_raw() || is_request {
            return Ok(vec![Item {
                source: document.source.clone(),
                about: about(&value),
                request: document.json.clone(),
                settings: None,
                content: None,
                made: false,
            }]);
        }
        let about = identity(&value, &self.options)?;
        let old = old_objects.get(&about);
        let updates = self
            .options
            .operation
            .is_none_or(|one| one == Operation::Update);
        if self.old_objects.is_some() && updates && old.is_none() {
            bail!("--old-object has no {about}");
        }
        let request = make(&value, old, &self.options)?;
        Ok(vec![Item {
            source: document.source.clone(),
            about,
            request: request.to_string(),
            settings: None,
            content: None,
            made: true,
        }])
    }

    /// Requests of cases, with their settings. What they expect is for `assent test`.
    fn cases(&self, document: &Document) -> anyhow::Result<Vec<Item>> {
        let mut items = Vec::new();
        for case in case::parse(document)? {
            let Question::Request(request) = case.question else {
                continue;
            };
            items.push(Item {
                source: case.source,
                about: case.name,
                request,
                settings: case
                    .settings
                    .filter(|_| !self.has_settings)
                    .map(String::into_bytes),
                content: case.content,
                made: false,
            });
        }
        Ok(items)
    }

    fn old_objects(&self) -> anyhow::Result<BTreeMap<String, Value>> {
        let Some(path) = &self.old_objects else {
            return Ok(BTreeMap::new());
        };
        let documents = input::read_all(std::slice::from_ref(path), true)?;
        let mut objects = BTreeMap::new();
        for document in documents {
            let value = document.value();
            let about = identity(&value, &self.options);
            let about = about.with_context(|| format!("failed to use {}", document.source))?;
            objects.insert(about, value);
        }
        Ok(objects)
    }
}

/// What a review or request is about, as far as it says.
fn about(value: &Value) -> String {
    let request = value.get("request").unwrap_or(value);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&request["kind"]["kind"]), text(&request["name"]));
    let namespace = text(&request["namespace"]);
    match (kind.is_empty(), namespace.is_empty()) {
        (true, _) => "document".into(),
        (false, true) => format!("{kind} {name}"),
        (false, false) => format!("{kind} {namespace}/{name}"),
    }
}

fn print(outcomes: &[(Item, Outcome)], output: OutputArgs) -> anyhow::Result<()> {
    if output.is_json() {
        let rows: Vec<Row<'_>> = outcomes
            .iter()
            .map(|(item, outcome)| outcome.row(item))
            .collect();
        return out::json(&rows);
    }
    for (item, outcome) in outcomes {
        let about = clean(&item.about);
        match outcome {
            Outcome::Verdict { verdict, .. } => {
                out::print(format_args!("{about}: {}", answer::Text(verdict)))?;
            }
            Outcome::Skipped(why) => out::line(format_args!("{about}: skipped: {}", clean(why)))?,
            Outcome::Error(error) => {
                let error = format!("{error:#}");
                let (source, error) = (clean(&item.source), clean_lines(&error));
                out::line(format_args!("{about}: not evaluated: {source}: {error}"))?;
            }
        }
    }
    Ok(())
}

/// The worst outcome. Nothing but skipped objects is most likely a mistake.
fn exit(outcomes: &[(Item, Outcome)]) -> anyhow::Result<Exit> {
    let outcomes = || outcomes.iter().map(|(_, outcome)| outcome);
    if outcomes().any(|one| matches!(one, Outcome::Error(_))) {
        return Ok(Exit::Unknown);
    }
    if outcomes().all(|one| matches!(one, Outcome::Skipped(_))) {
        bail!("no object matches the rules of the policy; --ignore-rules evaluates them anyway");
    }
    let denied =
        |one: &Outcome| matches!(one, Outcome::Verdict { verdict, .. } if !verdict.allowed);
    Ok(Exit::yes_if(!outcomes().any(denied)))
}

// === impl Outcome ===

impl Outcome {
    fn row<'a>(&'a self, item: &'a Item) -> Row<'a> {
        let (result, reason) = match self {
            Self::Verdict { verdict, .. } if verdict.allowed => ("allowed", None),
            Self::Verdict { .. } => ("denied", None),
            Self::Skipped(why) => ("skipped", Some(why.clone())),
            Self::Error(error) => ("error", Some(format!("{error:#}"))),
        };
        let response = match self {
            Self::Verdict { uid, verdict } => Some(AdmissionResponse::new(uid, verdict)),
            _ => None,
        };
        Row {
            source: &item.source,
            object: &item.about,
            result,
            reason,
            response,
        }
    }
}
