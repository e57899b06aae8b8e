// A page with nothing but pairs of texts, ranked ones with a list above. In a notebook it is a sandboxed frame.
{
  const pairs = JSON.parse(document.getElementById("pairs-data").textContent);
  const view = new PairView(document.getElementById("pairs-root"), pairs);
  const ranking = document.getElementById("ranking-root");
  if (ranking) new RankingView(ranking, pairs, view);
}
