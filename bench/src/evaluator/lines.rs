//! What was measured, against what it should be.

use super::{
    Bench, loading,
    measure::CPU,
    throughput::{self, BEYOND, OF_ONE, OF_RAW, OF_TOGETHER},
};
use crate::report::Unit;

/// One expectation of a median.
struct Line {
    words: String,
    row: String,
    value: &'static str,
    unit: Unit,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// Connections at which processor time is steadiest: busy, but not a queue.
const CONNECTIONS: usize = 8;

/// Adds a row for each line of which there is a measurement.
pub(super) fn compare(bench: &mut Bench) {
    for line in lines() {
        let Some(median) = bench.runs.median(&line.row, line.value) else {
            continue;
        };
        let (word, bound, holds) = match line.bound {
            Bound::AtMost(bound) => ("at most", bound, median <= bound),
            Bound::AtLeast(bound) => ("at least", bound, median >= bound),
        };
        let holds = if holds { "holds" } else { "DOES NOT HOLD" };
        let cells = vec![
            ("median", line.unit.show(median)),
            (word, line.unit.show(bound)),
            ("of it", Unit::Times.show(median / bound)),
            ("it", holds.to_owned()),
        ];
        bench.table.row(line.words, cells);
    }
}

fn lines() -> Vec<Line> {
    let reviews = |label: &str| throughput::row(label, CONNECTIONS);
    let mut lines = vec![
        Line {
            words: "tiny policy, end to end".to_owned(),
            row: reviews("tiny"),
            value: CPU,
            unit: Unit::Microseconds,
            bound: Bound::AtMost(45.0),
        },
        Line {
            // Four fifths of the rate at which HTTPS and the call can be had at all.
            words: "wapc policy, of echo with call".to_owned(),
            row: reviews("wapc"),
            value: OF_TOGETHER,
            unit: Unit::Times,
            bound: Bound::AtMost(1.25),
        },
        Line {
            words: "wasi policy, rate of the call".to_owned(),
            row: reviews("wasi"),
            value: OF_RAW,
            unit: Unit::Times,
            bound: Bound::AtLeast(0.9),
        },
        Line {
            words: "100 policies from artefacts".to_owned(),
            row: loading::row(100, loading::ARTEFACTS),
            value: loading::READY,
            unit: Unit::Milliseconds,
            bound: Bound::AtMost(2_000.0),
        },
    ];
    for label in ["tiny", "wapc", "opa", "gatekeeper", "wasi"] {
        lines.push(Line {
            words: format!("{label}: host beyond echo + guest"),
            row: reviews(label),
            value: BEYOND,
            unit: Unit::Microseconds,
            bound: Bound::AtMost(16.0),
        });
        lines.push(Line {
            words: format!("{label}: two threads of one"),
            row: throughput::two_threads(label),
            value: OF_ONE,
            unit: Unit::Times,
            bound: Bound::AtLeast(1.6),
        });
    }
    lines
}
