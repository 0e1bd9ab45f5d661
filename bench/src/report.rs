//! Tables for people, JSON for machines.
#![cfg_attr(not(feature = "evaluator"), allow(dead_code))]

use std::{fs, path::Path};

use anyhow::Context as _;
use serde::Serialize;

use crate::machine;

mod runs;

pub(crate) use runs::{Measured, Runs, Unit, ms, quantile, us};

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: &'static str,
    parameters: String,
    load_before: f64,
    quotable: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rows: Vec<Row>,
    /// Rows that were measured several times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<Measured>,
}

/// One measured thing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    what: String,
    values: Vec<(String, String)>,
}

// === impl Report ===

impl Report {
    /// Notes how busy the machine is before anything is measured.
    #[allow(clippy::print_stdout)]
    pub(crate) fn new(name: &'static str, parameters: String) -> Self {
        let load_before = machine::load_average();
        let quotable = machine::is_idle(load_before) && !cfg!(debug_assertions);
        let report = Self {
            name,
            parameters,
            load_before,
            quotable,
            rows: Vec::new(),
            measured: Vec::new(),
        };
        if !quotable {
            println!("{}\n", report.refusal());
        }
        report
    }

    /// Adds a row and shows it at once.
    #[allow(clippy::print_stdout)]
    pub(crate) fn row(&mut self, what: impl Into<String>, values: Vec<(&str, String)>) {
        let values = values.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let row = Row {
            what: what.into(),
            values,
        };
        let cells: Vec<String> = row.values.iter().map(|(k, v)| format!("{k} {v}")).collect();
        println!("{:<34} {}", row.what, cells.join("  "));
        self.rows.push(row);
    }

    /// Adds what several runs measured and shows median and spread.
    #[allow(clippy::print_stdout)]
    pub(crate) fn runs(&mut self, runs: Runs) {
        self.measured = runs.into_rows();
        println!("\nmedian (least to most of all runs)");
        for row in &self.measured {
            println!("{}", row.what());
            for (name, value) in row.cells() {
                println!("    {name:<26} {value}");
            }
        }
    }

    /// Writes the JSON, and says whether the numbers may be quoted.
    #[allow(clippy::print_stdout)]
    pub(crate) fn finish(&self, json: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(json, text).with_context(|| format!("failed to write {}", json.display()))?;
        println!(
            "\n{}: {}; written to {}",
            self.name,
            self.parameters,
            json.display()
        );
        if !self.quotable {
            println!("{}", self.refusal());
        }
        Ok(())
    }

    fn refusal(&self) -> String {
        let busy = !machine::is_idle(self.load_before);
        let why = match (busy, cfg!(debug_assertions)) {
            (true, false) => "the machine was busy",
            (false, _) => "this is not a release build",
            (true, true) => "the machine was busy, and this is not a release build",
        };
        let load = self.load_before;
        format!("NOT TO BE QUOTED: {why} (load average {load:.2} before the start, at most 0.5)")
    }
}
