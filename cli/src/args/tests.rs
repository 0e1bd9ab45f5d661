#![allow(clippy::unwrap_used)]
use std::{fmt::Write as _, path::PathBuf};

use clap::CommandFactory as _;

/// Set it to write the reference instead of comparing it.
const UPDATE: &str = "ASSENT_UPDATE_DOCS";

const HEAD: &str = "# Command line

The reference of the `assent` command: the help of every command, as `assent COMMAND --help` prints it. This page is generated; a test
compares it with the program. Exit codes and `-o json` are stable for scripts.
";

#[test]
fn command_line_is_consistent() {
    super::Cli::command().debug_assert();
}

/// The help of a command and of those below it.
fn describe(command: &mut clap::Command, path: &str, page: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(
        page,
        "\n## {path}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    )
    .unwrap();
    let visible = command
        .get_subcommands_mut()
        .filter(|one| !one.is_hide_set() && one.get_name() != "help");
    for one in visible {
        let path = format!("{path} {}", one.get_name());
        describe(one, &path, page);
    }
}

/// `ASSENT_UPDATE_DOCS=1 cargo test -p assent-cli reference` writes it.
#[test]
fn reference_matches_the_program() {
    let mut command = super::Cli::command()
        .term_width(100)
        .mut_args(|arg| arg.hide_env_values(true));
    command.build();
    let mut page = HEAD.to_owned();
    describe(&mut command, "assent", &mut page);
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/cli.md differs from the program: run the test with {UPDATE}=1 and commit the page"
    );
}
