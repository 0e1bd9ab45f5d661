//! Tables for people, JSON for machines.

use std::{fs, path::Path, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use crate::machine;

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: &'static str,
    parameters: String,
    load_before: f64,
    quotable: bool,
    rows: Vec<Row>,
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
    pub(crate) fn new(name: &'static str, parameters: String) -> Self {
        let load_before = machine::load_average();
        let quotable = machine::is_idle(load_before) && !cfg!(debug_assertions);
        Self {
            name,
            parameters,
            load_before,
            quotable,
            rows: Vec::new(),
        }
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
            println!(
                "NOT TO BE QUOTED: load average was {:.2} before the start (0.5 at most), or this is not a release build",
                self.load_before
            );
        }
        Ok(())
    }
}

/// Median, 99th percentile and maximum.
pub(crate) fn spread(samples: &mut [Duration]) -> Vec<(&'static str, String)> {
    samples.sort_unstable();
    let at = |q: f64| {
        let index = ((samples.len().saturating_sub(1)) as f64 * q).round() as usize;
        samples.get(index).copied().unwrap_or_default()
    };
    vec![
        ("p50", millis(at(0.5))),
        ("p99", millis(at(0.99))),
        ("max", millis(at(1.0))),
    ]
}

/// As milliseconds.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

/// As microseconds.
pub(crate) fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1_000_000.0)
}
