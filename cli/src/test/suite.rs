//! Runs cases one after the other.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use assent_wasm::{Review, Stage};

use super::{
    compare,
    find::nearest_policy,
    report::{Outcome, Report, Status},
};
use crate::{
    case::{self, Case, Question},
    evaluate::{Host, LocalPolicy, Overrides},
    input,
    request::Incoming,
    run::check,
};

/// What runs cases.
pub(super) struct Suite {
    pub(super) host: Host,
    pub(super) overrides: Overrides,
    /// Instead of what cases name.
    pub(super) policy: Option<String>,
}

/// Policies that are loaded already, or the reason why they can't be.
type Loaded = HashMap<String, Result<Arc<LocalPolicy>, String>>;

// === impl Suite ===

impl Suite {
    /// Runs the cases of all files whose name or source has `filter` in it.
    pub(super) fn run(&self, files: &[PathBuf], filter: &str) -> Report {
        let mut loaded = Loaded::new();
        let mut report = Report::default();
        for file in files {
            match cases(file) {
                Ok(cases) => {
                    let wanted =
                        |case: &&Case| case.name.contains(filter) || case.source.contains(filter);
                    for case in cases.iter().filter(wanted) {
                        report.push(self.run_case(case, &mut loaded));
                    }
                }
                Err(error) => report.push(Outcome {
                    name: String::new(),
                    source: file.display().to_string(),
                    policy: String::new(),
                    status: Status::Error(format!("{error:#}")),
                    took: Duration::ZERO,
                }),
            }
        }
        report
    }

    fn run_case(&self, case: &Case, loaded: &mut Loaded) -> Outcome {
        let outcome = |policy, status, took| Outcome {
            name: case.name.clone(),
            source: case.source.clone(),
            policy,
            status,
            took,
        };
        let failed = |error: anyhow::Error| Status::Error(format!("{error:#}"));
        let name = match self.policy_name(case) {
            Ok(name) => name,
            Err(error) => return outcome(String::new(), failed(error), Duration::ZERO),
        };
        let load = || {
            let policy = self.host.load(&name, &self.overrides);
            policy.map(Arc::new).map_err(|error| format!("{error:#}"))
        };
        let policy = loaded.entry(name.clone()).or_insert_with(load);
        let policy = match policy {
            Ok(policy) => policy.clone(),
            Err(error) => return outcome(name, Status::Error(error.clone()), Duration::ZERO),
        };
        let began = Instant::now();
        let status = self.ask(case, &policy).unwrap_or_else(failed);
        outcome(name, status, began.elapsed())
    }

    fn ask(&self, case: &Case, policy: &LocalPolicy) -> anyhow::Result<Status> {
        let settings = case.settings.clone().map(String::into_bytes);
        // Settings are valid or not whatever objects there are.
        let services = match &case.question {
            Question::Settings => self.host.common_services().clone(),
            Question::Request(_) => {
                let content = case.content.clone().unwrap_or_default();
                self.host.services(policy, &content)?
            }
        };
        let prepared = self.host.prepare(policy, settings, &services);
        let request = match &case.question {
            Question::Request(request) => request,
            Question::Settings => {
                let message = match prepared {
                    Ok(_) => None,
                    Err(error) if error.stage() == Stage::Settings => Some(error.to_string()),
                    Err(error) => bail!("failed to load {}: {error}", policy.loaded.name()),
                };
                return Ok(compare::settings(&case.expect, message.as_deref()).into());
            }
        };
        let ready = prepared.with_context(|| format!("failed to use {}", policy.loaded.name()))?;
        if policy.is_check() {
            let document = check::document(request.as_bytes(), policy.loaded.policy.as_deref())?;
            let review = Review::check(document.as_deref().unwrap_or("null"));
            let verdict = match &document {
                Ok(_) => ready.evaluate(&review)?,
                Err(denied) => denied.clone(),
            };
            return Ok(compare::verdict(&case.expect, &verdict, &review).into());
        }
        let incoming = Incoming::parse(request.as_bytes(), policy.is_raw())?;
        let verdict = ready.evaluate(&incoming.review)?;
        Ok(compare::verdict(&case.expect, &verdict, &incoming.review).into())
    }

    fn policy_name(&self, case: &Case) -> anyhow::Result<String> {
        if let Some(policy) = &self.policy {
            return Ok(policy.clone());
        }
        let Some(policy) = &case.policy else {
            let nearest = nearest_policy(&case.dir);
            let nearest = nearest.context(
                "the case names no policy, and there is no manifest.yaml, policy.yaml or policy.wasm next to it or above",
            )?;
            return Ok(shown(&nearest));
        };
        if policy.contains("://") || policy.starts_with("sha256:") {
            return Ok(policy.clone());
        }
        Ok(case.dir.join(policy).display().to_string())
    }
}

/// The path from the current directory, if it is below that.
fn shown(path: &Path) -> String {
    let current = std::env::current_dir().ok();
    let relative = current.and_then(|dir| path.strip_prefix(dir).map(Path::to_owned).ok());
    relative.as_deref().unwrap_or(path).display().to_string()
}

/// The cases of a file. Kubernetes objects beside them are data of other cases.
fn cases(file: &Path) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for document in input::read_documents(file)? {
        if !case::is_object(&document.value()) {
            cases.extend(case::parse(&document)?);
        }
    }
    Ok(cases)
}
