import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the test classes that its arguments name, and prints how each of their tests ended. */
public class Suites {
  public static void main(String[] args) throws Exception {
    JUnitCore core = new JUnitCore();
    core.addListener(
        new RunListener() {
          private boolean ended;

          @Override
          public void testStarted(Description d) {
            ended = false;
          }

          @Override
          public void testFailure(Failure f) {
            tell("fail", f.getDescription(), String.valueOf(f.getException()));
            f.getException().printStackTrace();
          }

          @Override
          public void testAssumptionFailure(Failure f) {
            tell("skip", f.getDescription(), String.valueOf(f.getException()));
          }

          @Override
          public void testFinished(Description d) {
            if (!ended) {
              tell("pass", d, "");
            }
          }

          private void tell(String outcome, Description d, String why) {
            ended = true;
            String test = d.getMethodName() == null ? "class" : d.getMethodName();
            System.out.printf("%s %s.%s %s%n", outcome, d.getTestClass().getSimpleName(), test, why.replace('\n', ' '));
          }
        });
    for (String name : args) {
      core.run(Class.forName(name));
    }
    System.exit(0); // some of the clients' threads live on for a minute
  }
}
