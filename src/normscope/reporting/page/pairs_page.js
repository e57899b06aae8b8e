// A page that shows only pairs of texts; if they are ranked, a list stands above. In a notebook it is a sandboxed frame.
{
  const pairs = JSON.parse(document.getElementById("pairs-data").textContent);
  const view = new PairView(document.getElementById("pairs-root"), pairs);
  const ranking = document.getElementById("ranking-root");
  if (ranking) new RankingView(ranking, pairs, view);
}
