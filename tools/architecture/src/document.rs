//! The tables of `ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};

/// What the document allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Which crates each crate uses.
    pub crates: BTreeMap<String, Uses>,
    /// Who may use a library, by `library` or `library/feature`.
    pub libraries: BTreeMap<String, Users>,
    /// The paths of the code map.
    pub map: BTreeSet<String>,
    /// The modules of the data flow, as `crate::module`.
    pub modules: BTreeSet<String>,
}

/// The crates of this workspace that a crate uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// In its library and programs.
    pub normal: BTreeSet<String>,
    /// In its tests only.
    pub tests: BTreeSet<String>,
}

/// The crates that use a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Those that should.
    pub allowed: BTreeSet<String>,
    /// Those that still do.
    pub exceptions: BTreeSet<String>,
}

// === impl Document ===

impl Document {
    /// Reads the tables by their headings. A table that is missing is an error: without it
    /// the checks would have nothing to compare with.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut document = Self::default();
        for [name, normal, tests] in table(text, "| crate | uses |")? {
            let uses = Uses {
                normal: names(&normal),
                tests: names(&tests),
            };
            for name in names(&name) {
                document.crates.insert(name, uses.clone());
            }
        }
        for [library, allowed, exceptions] in table(text, "| library | used by |")? {
            let users = Users {
                allowed: names(&allowed),
                exceptions: names(&exceptions),
            };
            for name in names(&library) {
                document.libraries.insert(name, users.clone());
            }
        }
        for [_, decides, performs] in table(text, "| arrow | decides |")? {
            let named = names(&decides).into_iter().chain(names(&performs));
            document
                .modules
                .extend(named.filter(|name| name.contains("::")));
        }
        for [path, _, _] in table(text, "| path | contents |")? {
            document.map.extend(names(&path));
        }
        Ok(document)
    }
}

/// The rows of the table that begins like this.
fn table(text: &str, heading: &str) -> Result<Vec<[String; 3]>, String> {
    let mut lines = text.lines();
    if !lines.any(|line| line.starts_with(heading)) {
        return Err(format!("ARCHITECTURE.md has no table {heading:?}"));
    }
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let mut next = || cells.next().map(str::to_owned);
        match (next(), next(), next()) {
            (Some(a), Some(b), Some(c)) => Ok([a, b, c]),
            _ => Err(format!(
                "a row of {heading:?} has less than three cells: {row}"
            )),
        }
    })
    .collect()
}

/// What is in backticks.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A

| arrow | decides | performs |
|---|---|---|
| a → b | `x::m` | `y`, `z::n` |

| path | contents | invariant |
|---|---|---|
| `a`, `b` | things | |

| crate | uses | its tests also use |
|---|---|---|
| `x` | `y`, `z` | `t` |
| `y` | | |

| library | used by | exceptions to be removed |
|---|---|---|
| `l/f` | `x` | `y` |
";

    #[test]
    fn tables_are_read_by_their_headings() {
        let document = Document::parse(TEXT).expect("the text must have all tables");
        assert_eq!(document.modules, names("`x::m` `z::n`"));
        assert_eq!(document.map, names("`a` `b`"));
        assert_eq!(document.crates["x"].normal, names("`y` `z`"));
        assert_eq!(document.crates["x"].tests, names("`t`"));
        assert_eq!(document.crates["y"], Uses::default());
        assert_eq!(document.libraries["l/f"].exceptions, names("`y`"));
    }

    #[test]
    fn missing_table_is_an_error() {
        let error = Document::parse("# A\n").expect_err("there is no table");
        assert!(error.contains("| crate | uses |"), "{error}");
    }
}
