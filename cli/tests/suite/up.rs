//! `assent up` with manifests that can't be read.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

use crate::support::{Files, command};

/// A running `assent up`, which is ended with its test.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(policies: &str, args: &[&str]) -> (Up, impl Iterator<Item = String> + use<>) {
    let common = [
        "up",
        "--replicas",
        "0",
        "--discovery",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let mut child = command(&[&common[..], &["--policies", policies], args].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (Up(child), lines.map(Result::unwrap))
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn broken_manifests_are_rows_and_nothing_else_is_not_ready() {
    let files = Files::new(&[("bad.yaml", b"# a comment\n---\nspec: [\n".as_slice())]);
    let log = files.path("up.log");
    let (_up, mut lines) = start(&files.path(""), &["--log-file", &log]);
    let http = lines.find_map(|line| line.strip_prefix("http: http://").map(str::to_owned));
    let http = http.unwrap();
    let row = lines.find(|line| line.starts_with("bad.yaml:")).unwrap();
    assert!(
        row.contains("accepted=False") && row.contains("reason=Invalid"),
        "{row}"
    );
    assert!(row.contains("line 3"), "{row}");
    let answer = get(&http, "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("no manifest in the directory of policies is valid"),
        "{answer}"
    );
    // What was repaired is gone from the list, and an empty directory is ready.
    std::fs::remove_file(files.path("bad.yaml")).unwrap();
    lines
        .find(|line| line.starts_with("bad.yaml:") && line.ends_with(" deleted"))
        .unwrap();
    assert!(get(&http, "/readyz").starts_with("HTTP/1.1 200"));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("bad.yaml") && log.contains("INFO"), "{log}");
}
