//! `assent test`: runs the test cases of policies.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use crate::{
    evaluate::{Host, Overrides},
    exit::Exit,
    module::ModuleArgs,
    out::{self, OutputArgs},
};

mod compare;
mod find;
mod junit;
mod report;
mod suite;
mod watch;

use report::Report;

/// Runs the test cases of policies on this machine.
///
/// A case has a policy, settings, an object or a request, and what must come out; docs/testing-policies.md describes the
/// format. Cases are the YAML and JSON files in directories called tests, and files called *_test.yaml or *_test.json.
/// A case that names no policy is about the nearest manifest.yaml, policy.yaml or policy.wasm, upwards from its file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directories with cases, which are searched, or files
    #[arg(value_name = "DIR|FILE", default_value = ".")]
    paths: Vec<PathBuf>,

    /// Module or manifest that all cases are about, whatever they name
    #[arg(long, value_name = "MODULE|MANIFEST")]
    policy: Option<String>,

    /// Run only cases with this text in their name or file
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Run again whenever a case, a policy or a module changes, until interrupted
    #[arg(short, long)]
    watch: bool,

    /// Also write the results to a file, in the format of JUnit
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Time limit of one evaluation. Longer than that of an evaluator, so that a slow machine fails no test
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent test                                   every case below this directory
  assent test policies/no-privileged --filter privileged
  assent test --policy policy.wasm tests --junit results.xml
  assent test --watch

Exit codes: 0 = every case passed, 1 = a case failed, 2 = a case could not be run, or there is none.";

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            paths,
            policy,
            filter,
            watch,
            junit,
            timeout,
            output,
            modules,
        } = self;
        let runner = Runner {
            suite: suite::Suite {
                host: Host::start(modules)?,
                overrides: Overrides {
                    timeout: Some(Duration::from_secs(timeout)),
                    ..Overrides::default()
                },
                policy,
            },
            paths,
            filter: filter.unwrap_or_default(),
            junit,
            output,
        };
        if watch {
            return runner.watch();
        }
        Ok(runner.once()?.exit())
    }
}

/// Everything that a run needs.
struct Runner {
    suite: suite::Suite,
    paths: Vec<PathBuf>,
    filter: String,
    junit: Option<PathBuf>,
    output: OutputArgs,
}

// === impl Runner ===

impl Runner {
    /// Runs every case and prints the results.
    fn once(&self) -> anyhow::Result<Report> {
        let files = find::files(&self.paths)?;
        let report = self.suite.run(&files, &self.filter);
        if report.is_empty() {
            let searched: Vec<String> = self
                .paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(
                "there are no cases in {}; a case is a file in a directory called tests, or a file called *_test.yaml",
                searched.join(", ")
            );
        }
        if let Some(path) = &self.junit {
            let written = std::fs::write(path, junit::xml(&report));
            written.with_context(|| format!("failed to write {}", path.display()))?;
        }
        if self.output.is_json() {
            out::json(&report)?;
        } else {
            out::print(report.text())?;
        }
        Ok(report)
    }

    /// Runs again at each change. Ends with the process.
    fn watch(&self) -> anyhow::Result<Exit> {
        let mut watch = watch::Watch::start()?;
        loop {
            // Before the run: what changes meanwhile must not be missed.
            watch.follow(&self.paths)?;
            match self.once() {
                Ok(report) => watch.follow(&report.policy_files())?,
                Err(error) => out::error(&error),
            }
            out::note("waiting for changes; end with Ctrl-C");
            watch.changed()?;
        }
    }
}
