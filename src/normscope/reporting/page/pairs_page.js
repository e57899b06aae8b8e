// A page with nothing but pairs of texts. In a notebook it is a sandboxed frame.
new PairView(document.getElementById("pairs-root"), JSON.parse(document.getElementById("pairs-data").textContent));
