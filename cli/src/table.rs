//! Tables with aligned columns.

use std::fmt;

use crate::out::clean;

/// Rows with a header. Each column is as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// The gap between columns.
const GAP: &str = "   ";

// === impl Table ===

impl Table {
    pub(crate) fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            rows: vec![header.into_iter().map(str::to_owned).collect()],
        }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub(crate) fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| match cell.is_empty() {
            true => "-".to_owned(),
            false => clean(&cell).into_owned(),
        };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// The lines, header first, without trailing spaces.
    pub(crate) fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            cells.join(GAP).trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["A", "LONGER", "C"]);
        table.push(["one".into(), String::new(), "x\ny".into()]);
        table.push(["ü".into(), "b".into(), String::new()]);
        let expect = "A     LONGER   C\none   -        x y\nü     b        -\n";
        assert_eq!(table.to_string(), expect);
    }
}
