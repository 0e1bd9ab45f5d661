//! Results in the format of JUnit, which CI systems show.
//!
//! Written by hand: it is a dozen lines, and only text and attributes have to be escaped.

use std::{collections::BTreeMap, fmt::Write as _};

use super::report::{Outcome, Report, Status};

/// The results, one suite for each policy.
pub(super) fn xml(report: &Report) -> String {
    let (passed, failed, errors) = report.counts();
    let tests = passed + failed + errors;
    let mut suites: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in &report.0 {
        suites.entry(&outcome.policy).or_default().push(outcome);
    }
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a String never fails.
    let _ = writeln!(
        xml,
        "<testsuites name=\"assent\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{errors}\">"
    );
    for (policy, outcomes) in suites {
        suite(&mut xml, policy, &outcomes);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, policy: &str, outcomes: &[&Outcome]) {
    let count = |name| {
        outcomes
            .iter()
            .filter(|one| one.status.name() == name)
            .count()
    };
    let time: f64 = outcomes.iter().map(|one| one.took.as_secs_f64()).sum();
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{time:.6}\">",
        escaped(policy),
        outcomes.len(),
        count("failed"),
        count("error"),
    );
    for outcome in outcomes {
        case(xml, outcome);
    }
    xml.push_str("  </testsuite>\n");
}

fn case(xml: &mut String, outcome: &Outcome) {
    let name = match outcome.name.as_str() {
        "" => &outcome.source,
        name => name,
    };
    let _ = write!(
        xml,
        "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" time=\"{:.6}\"",
        escaped(name),
        escaped(&outcome.policy),
        escaped(&outcome.source),
        outcome.took.as_secs_f64(),
    );
    let element = match outcome.status {
        Status::Passed => {
            xml.push_str("/>\n");
            return;
        }
        Status::Failed(_) => "failure",
        Status::Error(_) => "error",
    };
    let lines = outcome.status.lines();
    let first = lines.first().map(String::as_str).unwrap_or_default();
    let _ = writeln!(
        xml,
        ">\n      <{element} message=\"{}\">{}</{element}>\n    </testcase>",
        escaped(first),
        escaped(&lines.join("\n")),
    );
}

/// Characters that XML can't hold at all become spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(' '),
            char if char.is_control() => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn text_is_escaped_and_counted() {
        let outcome = |name: &str, status| Outcome {
            name: name.into(),
            source: "tests/a.json".into(),
            policy: "policy.wasm".into(),
            status,
            took: Duration::from_millis(1),
        };
        let report = Report(vec![
            outcome("fine", Status::Passed),
            outcome(
                "<a> & \"b\"\u{1b}",
                Status::Failed(vec!["one".into(), "two".into()]),
            ),
            outcome("", Status::Error("gone".into())),
        ]);
        let expect = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites name=\"assent\" tests=\"3\" failures=\"1\" errors=\"1\">
  <testsuite name=\"policy.wasm\" tests=\"3\" failures=\"1\" errors=\"1\" time=\"0.003000\">
    <testcase name=\"fine\" classname=\"policy.wasm\" file=\"tests/a.json\" time=\"0.001000\"/>
    <testcase name=\"&lt;a&gt; &amp; &quot;b&quot; \" classname=\"policy.wasm\" file=\"tests/a.json\" time=\"0.001000\">
      <failure message=\"one\">one&#10;two</failure>
    </testcase>
    <testcase name=\"tests/a.json\" classname=\"policy.wasm\" file=\"tests/a.json\" time=\"0.001000\">
      <error message=\"gone\">gone</error>
    </testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(xml(&report), expect);
    }
}
