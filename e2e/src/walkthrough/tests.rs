use std::{path::Path, process::Command, time::Duration};

use super::*;

const TEXT: &str = "\
# A title

```sh
not run
```

```console
$ echo hello; echo world
hello
world
$ printf '%s\\n' \\
    a b
a
b
$ true
```

Between.

```console
$ kubectl get cap
NAME   AGE
np     3s
```
";

fn mk_document(text: &str) -> Document {
    Document::read(text).expect("it must be read")
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn mk_step(shown: &str) -> Step {
    let shown = lines(shown);
    Step {
        line: 1,
        command: "true".into(),
        place: 1..1 + shown.len(),
        shown,
    }
}

#[test]
fn commands_and_outputs_are_found() {
    let document = mk_document(TEXT);
    let found: Vec<_> = document
        .steps()
        .iter()
        .map(|s| (s.line, s.command.as_str(), s.shown.join("|")))
        .collect();
    assert_eq!(
        found,
        [
            (8, "echo hello; echo world", "hello|world".to_owned()),
            (11, "printf '%s\\n' \\\n    a b", "a|b".to_owned()),
            (15, "true", String::new()),
            (21, "kubectl get cap", "NAME   AGE|np     3s".to_owned()),
        ]
    );
}

#[track_caller]
fn check_mistake(text: &str, expect: &str) {
    let why = Document::read(text).expect_err("it must be refused");
    assert_eq!(why, expect);
}

#[test]
fn syntax_errors_name_the_line() {
    check_mistake("a\n```console\n$ true\n", "line 2: this block has no end");
    check_mistake(
        "```console\nhello\n```\n",
        "line 2: no command has this output",
    );
    check_mistake(
        "```console\n$ a \\\n```\n",
        "line 2: the command has no end",
    );
}

#[test]
fn blessing_writes_the_actual_outputs() {
    let document = mk_document(TEXT);
    let mut seen: Vec<_> = document.steps().iter().map(|s| s.shown.clone()).collect();
    assert_eq!(document.with(&seen), TEXT);
    seen[3] = lines("NAME AGE\nnp   2m10s");
    seen[0] = lines("hello");
    seen[2] = lines("new");
    let expect = TEXT
        .replace("hello\nworld\n", "hello\n")
        .replace("$ true\n", "$ true\nnew\n")
        .replace("NAME   AGE\nnp     3s\n", "NAME AGE\nnp   2m10s\n");
    assert_eq!(document.with(&seen), expect);
}

#[test]
fn blessing_keeps_ellipses() {
    let renewed = |shown, seen| mk_step(shown).renewed(&lines(seen)).join("|");
    assert_eq!(renewed("…\nb 3s\n…", "a\nb 5s\nc\nd"), "…|b 5s|…");
    assert_eq!(renewed("…", ""), "…");
    // The rest is wrong: everything is shown.
    assert_eq!(renewed("…\nb", "a\nc"), "a|c");
}

#[track_caller]
fn check_same(shown: &str, seen: &str) {
    if let Err(difference) = mk_step(shown).judge(&lines(seen)) {
        panic!("they differ:\n{difference}");
    }
}

#[track_caller]
fn check_other(shown: &str, seen: &str) {
    let judged = mk_step(shown).judge(&lines(seen));
    assert!(judged.is_err(), "{seen:?} passes for {shown:?}");
}

#[test]
fn varying_parts_are_compared_by_shape() {
    check_same(
        "NAME   APPLIED   AGE\nnp     3         59s",
        "NAME   APPLIED   AGE\nnp     3         1m3s  ",
    );
    let (a, b) = ("a".repeat(64), "0".repeat(64));
    check_same(
        &format!("http://m/p.wasm#sha256:{a}"),
        &format!("http://m/p.wasm#sha256:{b}"),
    );
    check_same(
        "cluster/np/4-5f2a9c1e was tested",
        "cluster/np/4-00000000 was tested",
    );
    check_same(
        "at 2026-11-16T15:40:00Z by assent-7d9c5b7f6c-x2v5k from 10.244.1.7",
        "at 2027-01-02T03:04:05.678Z by assent-5c4dd8f9b-zzzzz from 10.244.3.12",
    );
    check_same(
        "LAST DEPLOYED: Mon Nov 16 15:40:00 2026",
        "LAST DEPLOYED: Tue Dec  1 05:00:01 2026",
    );
    check_same(
        "{result=\"ack\"} => 17 @[1794843600.123]",
        "{result=\"ack\"} => 4 @[1794843601]",
    );
    check_same(
        "image  60.1 MiB, program 55.3 MiB",
        "image  7 MiB, program 1.0 MiB",
    );
}

#[test]
fn other_parts_are_compared_exactly() {
    check_other("np   3   59s", "np   2   59s");
    check_other("np   True   59s", "np   False   59s");
    check_other("cluster/np/4-5f2a9c1e", "cluster/np/5-5f2a9c1e");
    check_other("  indented", "indented");
    check_other("a", "a\nb");
    check_other("a\nb", "a");
    check_other("", "a");
    check_other("a", "");
    check_other("{result=\"ack\"} => 1 @[1]", "{result=\"nack\"} => 1 @[1]");
}

#[test]
fn ellipsis_matches_omitted_lines() {
    check_same("…", "");
    check_same("…", "a\nb");
    check_same("a\n…\nd", "a\nb\nc\nd");
    check_same("a\n…", "a");
    check_other("a\n…\nd", "a\nb\nc");
    check_other("…\nb", "a");
    check_other("a …", "a b");
}

#[test]
fn wrong_output_is_shown_next_to_the_expected_one() {
    let shown = "NAME   ENFORCED\nnp     True\nend";
    let seen = lines("NAME   ENFORCED\nnp     False\nmore\nend");
    let difference = mk_step(shown)
        .judge(&seen)
        .expect_err("it must be found wrong");
    assert_eq!(
        difference,
        "  NAME   ENFORCED\n- np     True\n+ np     False\n+ more\n  end"
    );
}

#[test]
fn command_may_fail_only_if_an_error_is_shown() {
    assert!(mk_step("Error from server: no").may_fail());
    assert!(mk_step("ERROR:\n  Code: Unauthenticated").may_fail());
    assert!(!mk_step("no error").may_fail());
    assert!(!mk_step("").may_fail());
}

fn mk_shell() -> Shell {
    Shell::start(&mut Command::new("bash"))
}

#[track_caller]
fn check_run(shell: &mut Shell, command: &str, output: &str, status: i32) {
    let outcome = shell.run(command, crate::PATIENCE);
    let outcome = outcome.unwrap_or_else(|why| panic!("{command}: {why}"));
    let output = lines(output);
    assert_eq!(outcome, Outcome { output, status }, "{command}");
}

#[test]
fn shell_keeps_state_and_reports_exit_codes() {
    let mut shell = mk_shell();
    check_run(&mut shell, "x='it is'; export y=5", "", 0);
    check_run(&mut shell, "echo \"$x\" $y", "it is 5", 0);
    check_run(&mut shell, "echo it\\'s \\\n  long", "it's long", 0);
    check_run(&mut shell, "printf 'no end of line'", "no end of line", 0);
    check_run(&mut shell, "echo wrong >&2; (exit 3)", "wrong", 3);
    check_run(&mut shell, "cat", "", 0);
    check_run(&mut shell, "printf 'a\\n\\n'", "a\n\n", 0);
}

#[test]
fn background_processes_end_with_the_shell() {
    let mut shell = mk_shell();
    let outcome = shell.run("sleep 600 >/dev/null & echo $!", crate::PATIENCE);
    let pid = outcome.expect("it must run").output.concat();
    let process = format!("/proc/{pid}");
    assert!(Path::new(&process).exists());
    drop(shell);
    // Init reaps it.
    let began = std::time::Instant::now();
    while is_alive(&process) {
        assert!(began.elapsed() < crate::PATIENCE, "it lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is there and no zombie.
fn is_alive(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn command_that_does_not_end_times_out() {
    let mut shell = mk_shell();
    let outcome = shell.run("echo begun; sleep 600", Duration::from_millis(500));
    let why = outcome.expect_err("it must be given up");
    assert!(why.starts_with("it does not end"), "{why}");
    let outcome = mk_shell().run("exit 3", crate::PATIENCE);
    let why = outcome.expect_err("there is no shell any more");
    assert!(why.starts_with("the shell has ended"), "{why}");
}

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");

#[test]
fn walkthrough_page_parses() {
    let text = std::fs::read_to_string(format!("{DOCS}/walkthrough.md"));
    let document = mk_document(&text.expect("the document must be there"));
    assert!(document.steps().len() > 30);
}

/// The committed module is what its source builds.
#[test]
fn greedy_module_matches_its_source() {
    let source = Path::new(DOCS).join("walkthrough/greedy.wat");
    let built = wat::parse_file(&source).expect("it must be a module");
    let committed = source.with_extension("wasm");
    if std::env::var_os("ASSENT_BLESS").is_some() {
        std::fs::write(&committed, &built).expect("file must be written");
    }
    let committed = std::fs::read(committed).expect("the module must be there");
    assert!(built == committed, "ASSENT_BLESS=1 writes it again");
}
