//! What of an output is the same in every run.

use std::{borrow::Cow, sync::LazyLock};

use regex::Regex;

/// What differs from run to run, and what stands for it.
const VOLATILE: [(&str, &str); 12] = [
    // Digests, whole or shortened.
    (r"\bsha256:[0-9a-f]{16,64}\b", "sha256:DIGEST"),
    (r"\b([0-9a-f]{64}|[0-9a-f]{12})\b", "DIGEST"),
    // A revision is a generation, which is compared, and the beginning of a UID.
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID"),
    (r"\b(\d+)-[0-9a-f]{8}\b", "$1-UID"),
    // Times: of Kubernetes, of helm.
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (
        r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\b",
        "TIME",
    ),
    // Samples of Prometheus.
    (r"=> [0-9.]+ @\[[0-9.]+\]", "=> NUMBER @[TIME]"),
    (r"\b\d+(\.\d+)? [KMG]iB\b", "SIZE"),
    (r"\b10(\.\d{1,3}){3}\b", "ADDRESS"),
    // Pods of the control plane's Deployment.
    (r"\bassent-[a-z0-9]{6,10}-[a-z0-9]{5}\b", "assent-POD"),
    // Ages: 3s, 2m3s, 5h, 1d2h.
    (r"\b\d+(s|m(\d+s)?|h(\d+m)?|d(\d+h)?)\b", "AGE"),
    // Columns are as wide as what is in them.
    (r"(\S)[ \t]+", "$1 "),
];

static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rule = |(pattern, stands)| {
        let pattern = Regex::new(pattern).expect("a pattern of ours must be one");
        (pattern, stands)
    };
    VOLATILE.into_iter().map(rule).collect()
});

/// A line with placeholders for what differs from run to run.
pub fn of(line: &str) -> String {
    let mut shape = Cow::Borrowed(line);
    for (pattern, stands) in RULES.iter() {
        if let Cow::Owned(changed) = pattern.replace_all(&shape, *stands) {
            shape = Cow::Owned(changed);
        }
    }
    shape.trim_end().to_owned()
}
