//! The same rows measured several times: median and spread.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Rows that are measured once per run.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    run: usize,
    rows: Vec<Measured>,
}

/// A row's values over all runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    what: String,
    values: Vec<Value>,
}

/// One value over all runs.
#[derive(Clone, Debug, Serialize)]
struct Value {
    name: &'static str,
    unit: Unit,
    median: f64,
    min: f64,
    max: f64,
    runs: Vec<f64>,
}

/// What a value is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    Microseconds,
    Kilobytes,
    Megabytes,
    Bytes,
    Number,
    Times,
}

// === impl Runs ===

impl Runs {
    /// The next run begins.
    pub(crate) fn begin(&mut self) {
        self.run += 1;
    }

    /// Adds what this run measured, and shows it at once.
    #[allow(clippy::print_stdout)]
    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        values: impl IntoIterator<Item = (&'static str, Unit, f64)>,
    ) {
        let what = what.into();
        let index = self.rows.iter().position(|row| row.what == what);
        let index = index.unwrap_or_else(|| {
            self.rows.push(Measured {
                what: what.clone(),
                values: Vec::new(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[index];
        let mut cells = Vec::new();
        for (name, unit, value) in values {
            row.add(name, unit, value);
            cells.push(format!("{name} {}", unit.show(value)));
        }
        println!("run {}: {what:<34} {}", self.run, cells.join("  "));
    }

    /// The median so far of one value of one row.
    pub(crate) fn median(&self, what: &str, name: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.what == what)?;
        let value = row.values.iter().find(|value| value.name == name)?;
        Some(value.median)
    }

    pub(super) fn into_rows(self) -> Vec<Measured> {
        self.rows
    }
}

// === impl Measured ===

impl Measured {
    fn add(&mut self, name: &'static str, unit: Unit, value: f64) {
        let known = self.values.iter().position(|v| v.name == name);
        let index = known.unwrap_or_else(|| {
            self.values.push(Value {
                name,
                unit,
                median: value,
                min: value,
                max: value,
                runs: Vec::new(),
            });
            self.values.len() - 1
        });
        let known = &mut self.values[index];
        known.runs.push(value);
        known.summarize();
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Name and text of each value: the median, and the spread if there was more than
    /// one run.
    pub(super) fn cells(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.values.iter().map(|value| (value.name, value.show()))
    }
}

// === impl Value ===

impl Value {
    fn summarize(&mut self) {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        self.median = sorted[sorted.len() / 2];
        self.min = sorted[0];
        self.max = sorted[sorted.len() - 1];
    }

    fn show(&self) -> String {
        let median = self.unit.show(self.median);
        if self.min == self.max {
            return median;
        }
        let (min, max) = (self.unit.number(self.min), self.unit.number(self.max));
        format!("{median} ({min} to {max})")
    }
}

// === impl Unit ===

impl Unit {
    /// A value with this unit.
    pub(crate) fn show(self, value: f64) -> String {
        format!("{}{}", self.number(value), self.suffix())
    }

    fn number(self, value: f64) -> String {
        match self {
            Unit::Milliseconds | Unit::Times => format!("{value:.2}"),
            Unit::Microseconds | Unit::Kilobytes | Unit::Megabytes => format!("{value:.1}"),
            Unit::Bytes => format!("{value:.0}"),
            // Counts are whole unless they are averages.
            Unit::Number if value.fract() == 0.0 => format!("{value:.0}"),
            Unit::Number => format!("{value:.2}"),
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Unit::Milliseconds => " ms",
            Unit::Microseconds => " µs",
            Unit::Kilobytes => " KB",
            Unit::Megabytes => " MB",
            Unit::Bytes => " B",
            Unit::Number => "",
            Unit::Times => " x",
        }
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.suffix().trim_start())
    }
}

/// A time in milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A time in microseconds.
pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The value that this share of the samples does not exceed.
pub(crate) fn quantile(samples: &mut [Duration], share: f64) -> Duration {
    samples.sort_unstable();
    let index = (samples.len().saturating_sub(1) as f64 * share).round() as usize;
    samples.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn runs_have_a_median_and_a_spread() {
        let mut runs = Runs::default();
        for value in [3.0, 1.0, 200.0] {
            runs.begin();
            runs.row("a", [("time", Unit::Milliseconds, value)]);
        }
        runs.row("b", [("count", Unit::Number, 7.0)]);
        assert_eq!(runs.median("a", "time"), Some(3.0));
        let rows = runs.into_rows();
        let cells: Vec<_> = rows.iter().flat_map(|row| row.cells()).collect();
        let spread = "3.00 ms (1.00 to 200.00)".to_owned();
        assert_eq!(cells, [("time", spread), ("count", "7".to_owned())]);
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(json[0]["values"][0]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(json[0]["values"][0]["unit"], "ms");
    }

    #[test]
    fn quantiles_are_samples() {
        let mut samples: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut samples, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&mut samples, 1.0), Duration::from_millis(100));
        assert_eq!(quantile(&mut [], 0.5), Duration::ZERO);
    }
}
